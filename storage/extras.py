"""How an extra of ours is installed, in one place: what is said where one is missing.

No package index has a release of ours. Under our name there, anybody could put anything.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """For the end of a message: from a wheel, or from the checkout that it was made of."""
    return (
        f"install strandline from its wheel or checkout with the extra [{extra}]:"
        f" pip install 'strandline-VERSION-py3-none-any.whl[{extra}]', or pip install '.[{extra}]'"
    )

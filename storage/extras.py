"""The hint how to install an extra, for the error where one is missing.

No package index has a release of ours, so a package of our name there may be anything.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The end of a message: install from a wheel, or from the checkout that it was built from."""
    return (
        f"install strandline from its wheel or checkout with the extra [{extra}]:"
        f" pip install 'strandline-VERSION-py3-none-any.whl[{extra}]', or pip install '.[{extra}]'"
    )

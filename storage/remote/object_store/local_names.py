"""Maps object keys to paths in a local directory store, and back. Pure.

    topics/orders-<uuid>/0/manifest.json    the same path
    topics/<more than 200 letters>/...      topics/<200 letters>%/<the others>/...

Characters that a file system may reject are percent-encoded. A component longer than a file name is
cut into nested folders whose names end in a lone `%` (a topic's folder can have 286 characters).
"""

from __future__ import annotations

import urllib.parse

CONTINUATION = "%"

# Linux file systems limit file names to 255 bytes; encoded text is ASCII.
_COMPONENT_CHARACTERS_MAX = 200


def path_of(key: str) -> str:
    """Returns the path of an object below the root, or of a prefix that ends in `/`."""
    encoded = urllib.parse.quote(key, safe="=+@,/")
    return "/".join([_cut(component) for component in encoded.split("/")])


def key_of(path: str) -> str:
    """Returns the key of the object at this path."""
    return urllib.parse.unquote(path.replace(CONTINUATION + "/", ""))


def _cut(encoded: str) -> str:
    """Returns a component as nested folders whose names are short enough."""
    parts = []
    while len(encoded) > _COMPONENT_CHARACTERS_MAX:
        cut = _COMPONENT_CHARACTERS_MAX
        # An escape is not cut in two: its `%` would look like a continuation.
        cut -= next((back for back in (1, 2) if encoded[cut - back] == "%"), 0)
        parts.append(encoded[:cut] + CONTINUATION)
        encoded = encoded[cut:]
    return "/".join([*parts, encoded])

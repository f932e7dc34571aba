"""CRC-32C, the checksum of batches, snapshots and our own documents.

It is the compiled function of the package crc32c, without the package around it: that asks
`importlib.metadata` for its own version when it is imported, and with that come email, zipfile and
csv, a tenth of a broker's start and 2 MiB for good.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from strandline.storage.model import Buffer

__all__ = ["crc32c"]

_PACKAGE = "crc32c"
_EXTENSION = "crc32c._crc32c"


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The checksum of what `value` is the checksum of, followed by `data`."""
        ...


def _compiled() -> _Checksum:
    """The function `crc32c` of the package. Raises ImportError without it."""
    package = PathFinder.find_spec(_PACKAGE)
    if package is not None and package.submodule_search_locations is not None:
        found = PathFinder.find_spec(_EXTENSION, list(package.submodule_search_locations))
        if found is not None and found.loader is not None:
            module = module_from_spec(found)
            found.loader.exec_module(module)
            return cast("_Checksum", module.crc32c)
    # It is laid out in another way here: then with all that it brings.
    from crc32c import crc32c as with_its_package

    return cast("_Checksum", with_its_package)


crc32c = _compiled()

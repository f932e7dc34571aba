"""Whether an object that was just written is what was written: size and checksum, as stored."""

from __future__ import annotations

from collections.abc import Callable

from strandline.storage.errors import ObjectCorrupt
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.system import crc32c as crc32c_module

# Where a store keeps no checksum, an object is read back in pieces of this size.
READ_BACK_BYTES = 8 * 1024 * 1024


def verify_object(
    store: ObjectStore,
    key: str,
    *,
    size_bytes: int,
    crc32c: int,
    before_piece: Callable[[], None] = lambda: None,
) -> None:
    """Raises ObjectCorrupt unless the store holds exactly these bytes under `key`; blocks.

    `before_piece` is called before each piece that has to be read back, and may raise.
    """
    stored = store.head(key)
    if stored.size_bytes != size_bytes:
        raise ObjectCorrupt(
            key, "verify", f"has {stored.size_bytes} bytes, {size_bytes} were written"
        )
    # Who wrote it computed its note from the bytes that went out.
    found_crc32c = stored.stated_crc32c
    if found_crc32c is None:
        found_crc32c = 0
        for start in range(0, size_bytes, READ_BACK_BYTES):
            before_piece()
            piece = store.get(key, start=start, end=min(start + READ_BACK_BYTES, size_bytes))
            found_crc32c = crc32c_module.crc32c(piece, found_crc32c)
    if found_crc32c != crc32c:
        raise ObjectCorrupt(key, "verify", f"crc32c {found_crc32c:08x}, {crc32c:08x} was written")

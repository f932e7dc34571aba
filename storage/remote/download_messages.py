"""What the broker and its download process say to each other; apart, so that both load little."""

from __future__ import annotations

from strandline.storage.model import Offset
from strandline.storage.remote.direct_read import DirectRead
from strandline.storage.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    """Bytes [start, start + size_bytes) of `source`, to the beginning of block number `block`.

    The first batch must begin with `base_offset`. If the block `is_new` to the child, its
    descriptor follows. `forgotten` are the numbers of blocks that are gone.
    """

    source: DirectRead
    start: int
    size_bytes: int
    base_offset: Offset
    block: int
    block_bytes: int
    is_new: bool
    forgotten: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Bytes [start, start + size_bytes) of the file whose descriptor follows: are they whole?

    The first batch must begin with `base_offset`.
    """

    start: int
    size_bytes: int
    base_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDone:
    """Why there is no index of what was asked for."""

    detail: str
    is_corrupt: bool = False

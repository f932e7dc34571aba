"""Faults that are planted into replication, in simulated clusters and in real ones."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.replication.followed import Followed


def acknowledged_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "wait", lambda *_: ErrorCode.NONE)


def the_high_watermark_is_the_leaders_end(patch: pytest.MonkeyPatch) -> None:
    def advance(own: Leading) -> None:
        own._local.advance_high_watermark(own._local.end_offset)
        own._tell()

    appended = Leading.appended

    def at_once(own: Leading, info: Any) -> None:
        appended(own, info)
        own.advance()

    patch.setattr(Leading, "advance", advance)
    patch.setattr(Leading, "appended", at_once)


def nothing_is_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followed, "truncate", lambda own, _offset: own._go_on())


def divergence_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A follower goes on at its end, whatever epoch its last record has."""

    def asked(own: Followed) -> Any:
        return _asked(own)._replace(last_epoch=-1)

    _asked = Followed.asked.fget  # type: ignore[attr-defined]
    patch.setattr(Followed, "asked", property(asked))

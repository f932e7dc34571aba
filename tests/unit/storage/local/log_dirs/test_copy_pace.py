"""Copies between log folders have as many bytes a second as an operator allows."""

from __future__ import annotations

from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.local.log_dirs.copy_pace import PAUSE_S_MAX, PIECE_BYTES_MAX, CopyPace
from tests.support.manual_clock import ManualClock


def copy(pace: CopyPace, clock: ManualClock, size_bytes: int) -> float:
    """Copies so many bytes; returns the seconds that it took."""
    began_s, left = clock.monotonic_s(), size_bytes
    while left:
        piece = min(pace.piece_bytes(), left)
        left -= piece
        pace.copied(piece)
        while pause_s := pace.pause_s():
            assert pause_s <= PAUSE_S_MAX
            clock.advance_ms(max(int(pause_s * 1000), 1))
    return clock.monotonic_s() - began_s


def test_a_copy_takes_as_long_as_its_rate_says() -> None:
    clock = ManualClock()
    pace = CopyPace(lambda: 1_000_000, clock)
    # The first second's worth is there at once.
    assert 9.0 <= copy(pace, clock, 10_000_000) <= 9.1


def test_without_a_rate_it_waits_for_nothing_and_takes_large_pieces() -> None:
    clock = ManualClock()
    pace = CopyPace(lambda: LONG_MAX, clock)
    assert pace.piece_bytes() == PIECE_BYTES_MAX
    assert copy(pace, clock, 10**9) == 0


def test_another_rate_holds_from_the_next_look_on() -> None:
    clock, rate = ManualClock(), 0
    pace = CopyPace(lambda: rate, clock)
    pace.copied(pace.piece_bytes())
    clock.advance_ms(60_000)
    assert pace.pause_s() == PAUSE_S_MAX
    rate = LONG_MAX
    assert pace.pause_s() == 0

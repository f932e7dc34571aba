"""Links between hosts, and the pipes over them: one direction of a connection each.

    sent ──► under way ──arrives──► received ──► taken          in order, each after a delay
                 │ the link is cut: it waits until that is healed, as TCP sends it again

A pipe takes only so many bytes that were not taken yet. Its end is under way like bytes: what a
process wrote before it died still arrives, and then the reset. What is under way when a connection
is reset from outside, or when a host loses its power, is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import Random
from zlib import crc32

from tests.sim.loop import OUTSIDE, VirtualLoop

# Bytes of one direction that were not read yet; of a socket's buffers together.
PIPE_BYTES_MAX = 256 * 1024
DELAY_S = (0.0001, 0.002)
# Until a lost packet is sent again.
AGAIN_S = (0.2, 3.0)


class End(Enum):
    """How a pipe ends: all was sent, or its sender is no more."""

    FINISHED = auto()
    RESET = auto()


class Link:
    """One direction between two hosts."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.delay_s = DELAY_S
        # Of what is sent, so much is lost at first and sent again.
        self.lossy_part = 0.0
        self.is_cut = False
        self._waiting: deque[Callable[[], None]] = deque()

    def draw_delay_s(self) -> float:
        seconds = self._random.uniform(*self.delay_s)
        if self.lossy_part and self._random.random() < self.lossy_part:
            seconds += self._random.uniform(*AGAIN_S)
        return seconds

    def pass_on(self, arrive: Callable[[], None]) -> None:
        """Calls it, at once or when the link is healed."""
        if self.is_cut:
            self._waiting.append(arrive)
        else:
            arrive()

    def heal(self) -> None:
        self.delay_s, self.lossy_part, self.is_cut = DELAY_S, 0.0, False
        waiting, self._waiting = self._waiting, deque()
        for arrive in waiting:
            arrive()


class Pipe:
    """One direction of a connection."""

    def __init__(
        self,
        loop: VirtualLoop,
        link: Link,
        note: Callable[..., None],
        name: str,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when something has come for the reader."""
        self._loop = loop
        self._link = link
        self._note = note
        self._name = name
        self._on_change = on_change
        self._in_flight = 0
        self._arrives_s = 0.0
        # Timers of one time come in no order.
        self._under_way: deque[bytes | End] = deque()
        # Nothing more comes by it: its sender is dead, or there is no power.
        self._is_lost = False
        self.received = bytearray()
        self.has_ended = False
        self.is_reset = False
        # Called when there is room again.
        self.on_room: Callable[[], None] = lambda: None

    @property
    def room_bytes(self) -> int:
        return PIPE_BYTES_MAX - self._in_flight - len(self.received)

    def send(self, data: bytes | memoryview) -> int:
        """Takes as much as there is room for; returns how much."""
        if self._is_lost:
            return len(data)
        taken = bytes(data[: max(0, self.room_bytes)])
        self._in_flight += len(taken)
        if taken:
            self._begin(taken)
        return len(taken)

    def end(self, how: End = End.FINISHED) -> None:
        """What was sent still arrives; after a reset nothing more is sent."""
        if not self._is_lost:
            self._begin(how)
            self._is_lost = how is End.RESET

    def reset(self) -> None:
        """What is in flight is lost."""
        self.is_reset = True
        self.received.clear()
        self._on_change()
        self.on_room()

    def vanish(self) -> None:
        """What is in flight is lost, and nobody is told."""
        self._is_lost = True
        self._under_way.clear()

    def take(self, byte_count: int) -> bytes:
        taken = bytes(self.received[:byte_count])
        del self.received[:byte_count]
        if taken:
            self.on_room()
        return taken

    def _begin(self, data: bytes | End) -> None:
        self._under_way.append(data)
        self._arrives_s = max(self._arrives_s, self._loop.time() + self._link.draw_delay_s())
        self._loop.call_at(self._arrives_s, self._link.pass_on, self._arrive, context=OUTSIDE)

    def _arrive(self) -> None:
        if self.is_reset or not self._under_way:
            return
        data = self._under_way.popleft()
        self._note(self._name, crc32(data) if isinstance(data, bytes) else data.name)
        if data is End.RESET:
            self.reset()
            return
        if data is End.FINISHED:
            self.has_ended = True
        else:
            assert isinstance(data, bytes)
            self._in_flight -= len(data)
            self.received += data
        self._on_change()

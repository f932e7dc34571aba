"""Child processes of a broker that run within it, in no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from strandline.storage.errors import StrandlineError
from strandline.storage.system.child_process import ChildProcess, program_of
from strandline.storage.tiering.copy import inspector

# What a program answers to a message.
ANSWERS: Mapping[str, Callable[[Any], object]] = {
    program_of(inspector.__name__): inspector.carry_out,
}


class InlineChild:
    """A child, and the connection to it: one answer for each message."""

    pid = 0

    def __init__(self, program: str) -> None:
        self._answer_to = ANSWERS[program]
        self._message: object = None
        self.connection = self

    def send(self, message: object) -> None:
        self._message = message

    def poll(self, _wait_s: float) -> bool:
        return True

    def recv(self) -> object:
        try:
            return self._answer_to(self._message)
        except StrandlineError as error:
            return error

    def bound_sends(self) -> None:
        """It takes everything."""

    def activity(self) -> bytes | None:
        return None

    def end(self) -> None:
        """It holds nothing."""

    kill = abandon = end


def start_inline(program: str) -> ChildProcess:
    return cast(ChildProcess, InlineChild(program))

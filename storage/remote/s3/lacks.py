"""Kinds of request that a server does not know: each is found by its refusal, and done otherwise.

    request ──taken──► done
       └─ refused for good (501, 400 ...) ─► the other way ──taken──► the server lacks it: the
                                                  │                   other way from now on
                                                  └─refused─► the refusal of the first way

So every process adapts, also a command that never tried the server out. Only a refusal counts that
is neither transient nor a matter of rights, conditions or damaged bytes; it is logged, since the
other way is slower. Nothing is remembered beyond the process: a server may learn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from strandline.storage.errors import TierError
from strandline.storage.remote.object_store.interface import Lack

log = logging.getLogger(__name__)

T = TypeVar("T")

_INSTEAD: Mapping[Lack, str] = {
    Lack.CHECKSUMS: "no checksums are sent, what is written is read back",
    Lack.MULTIPART: "large segments go in one request",
    Lack.BATCH_DELETE: "objects are deleted one by one",
}


class Lacks:
    """What one server lacks, as far as it is known. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Replaced as a whole, by any thread. A server that ignores the condition of a DELETE
        # answers like one that honours it: which it is, only a trial tells.
        self.found: frozenset[Lack] = frozenset({Lack.CONDITIONAL_DELETE})

    def do(self, lack: Lack, first: Callable[[], T], other: Callable[[], T]) -> T:
        """Returns the result of `first`, or that of `other` where the server refuses `first`."""
        if lack in self.found:
            return other()
        try:
            return first()
        except TierError as error:
            if type(error) is not TierError:
                raise
            refusal = error
        try:
            result = other()
        except TierError as error:
            if type(error) is not TierError:
                raise
            raise refusal from error
        self.note(lack, refusal)
        return result

    def note(self, lack: Lack, refusal: TierError) -> None:
        """Notes that the server refused a request for good; logs it if that is new."""
        if lack not in self.found:
            self.found |= {lack}
            log.warning(
                "the server refuses a kind of request, which is done in another way",
                extra={
                    "fields": {
                        "url": self._url,
                        "instead": _INSTEAD[lack],
                        "reason": str(refusal),
                    }
                },
            )

    def forget(self, lack: Lack) -> None:
        """Notes that the server does know a kind of request."""
        self.found -= {lack}

    def __repr__(self) -> str:
        return f"<Lacks {sorted(lack.value for lack in self.found)}>"

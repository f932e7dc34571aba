"""A follower's half of a fetch session (KIP-227; Kafka's FetchSessionHandler).

full fetch, epoch 0 ──► the leader opens session N ──► incremental ones, epochs 1, 2, ...
        ▲                                                 what is asked anew, what is left out
        └────── the leader does not know it any more, or nobody knows whether it was asked
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.replication.followed import FetchedFrom
from strandline.storage.model import TopicId

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

Key = tuple[TopicId, int]


class FollowerSession:
    """The session with one leader. Used on the event loop only."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        # What the leader knows that is asked.
        self.asked: dict[Key, FetchedFrom] = {}
        # What the request that is under way asks anew.
        self._is_full = True

    def __repr__(self) -> str:
        return f"<FollowerSession {self.session_id} epoch={self.epoch} asked={len(self.asked)}>"

    @property
    def is_full(self) -> bool:
        """Whether the next request has to name everything."""
        return self.epoch == INITIAL_EPOCH

    def update(
        self, wanted: Mapping[Key, FetchedFrom], gone: Iterable[Key]
    ) -> tuple[Mapping[Key, FetchedFrom], list[Key]]:
        """Returns what the next request has to name, and what has to be left out from now on.

        A full request wants all; an incremental one what may have changed.
        """
        if self.is_full:
            self.asked = dict(wanted)
            return wanted, []
        forgotten = [key for key in gone if self.asked.pop(key, None) is not None]
        changed = {key: one for key, one in wanted.items() if self.asked.get(key) != one}
        self.asked.update(changed)
        return changed, forgotten

    def take(self, answer: FetchResponse) -> bool:
        """Takes over the session of an answer; False if the answer has no partitions to take."""
        if answer.error_code:
            self.reset(keeps_id=answer.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return False
        if self.is_full:
            self.session_id = answer.session_id
            # Without a session each request names everything.
            self.epoch = 1 if answer.session_id else INITIAL_EPOCH
        elif answer.session_id != self.session_id:
            self.reset()
            return False
        else:
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
        return True

    def reset(self, *, keeps_id: bool = True) -> None:
        """The next request is a full one; it closes the session that the leader may still have."""
        self.epoch = INITIAL_EPOCH
        self.session_id = self.session_id if keeps_id else 0
        self.asked = {}

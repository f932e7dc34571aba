"""The claim of the archive in a bucket for a cluster.

    claim     cluster.json names this cluster, or is written if there is none
    later     it is looked at now and then, and written again if it was deleted

Nothing is written before the claim. An empty folder that held this broker's archive before is not
claimed: its volume is probably not mounted (`folder_marks.py`). If the bucket is unreachable, the
broker starts and serves its local records, and the claim is retried.

A store that refuses writes (read-only rights, or no space) still shows the owner of its archive.
Then archived segments are served, no segment is copied, and the claim retries until a write
succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from strandline.broker.cluster.metadata.log_reader import cluster_id_or_damage, cluster_of
from strandline.broker.server.upkeep.folder_marks import ArchiveMark
from strandline.storage.concurrency.tasks import result_of
from strandline.storage.errors import (
    AccessDenied,
    DiskError,
    StorageError,
    StoreFull,
    StrandlineError,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.keys import CLUSTER_KEY
from strandline.storage.remote.manifest.cluster_info import (
    ClusterInfo,
    create_cluster_info,
    load_cluster_info,
)
from strandline.storage.remote.object_store.conditional_writes import (
    Conditions,
    check_conditional_writes,
)
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.manager.manager import TieringManager

log = logging.getLogger(__name__)

_AWAY = "remote tier cannot be reached; archived records wait until it can"
_UNREADABLE = "remote tier refuses this broker's reads; archived records wait until it takes them"
_FORBIDDEN = (
    "writing to the remote tier is forbidden: what is archived is served, nothing is copied; it is"
    " tried again"
)
_FULL = "remote tier has no room: what is archived is served, nothing is copied; it is tried again"
_FORBIDDEN_NEW = (
    "writing to the remote tier is forbidden: no archive can be begun there; it is tried again"
)
_FULL_NEW = "remote tier has no room to begin an archive in; it is tried again"


class WrongArchive(StrandlineError):
    """The bucket holds another cluster's archive."""


class ArchiveClaim:
    """The claim of the archive for this cluster, with its result."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Executor,
        *,
        cluster_id: str,
        mark: ArchiveMark | None = None,
    ) -> None:
        """`worker` sends the requests. `mark` tells whether an earlier start saw the archive; None
        if it cannot vanish.
        """
        self._store = store
        self._mark = mark
        self._worker = worker
        self._ours = ClusterInfo(cluster_id=cluster_id)
        self._is_ours = False
        # How often cluster.json was found deleted.
        self.deleted_count = 0
        # The error of the last write if the store refused it.
        self.refusal: TierError | None = None
        # The error of the last attempt if it could not even read.
        self.failure: TierError | None = None
        # Known once the store has accepted writes.
        self.conditions: Conditions | None = None
        # The request in flight, which may outlive the attempt that sent it.
        self._asking: asyncio.Future[_Answer] | None = None
        # The last logged reason for an incomplete claim.
        self._noted = ""

    @property
    def is_ours(self) -> bool:
        """Whether the archive is this cluster's, possibly in a store that refuses writes."""
        return self._is_ours

    @property
    def is_complete(self) -> bool:
        """Whether the archive is ours, in a store that accepts writes."""
        return self._is_ours and self.refusal is None

    async def attempt(self, *, wait_s: float | None = None) -> bool:
        """Returns whether the archive is known to be ours; False if the store is unreachable.

        Waits at most `wait_s`, or as long as the store's timeouts allow. The request stays in
        flight, and the next attempt takes its answer instead of sending another.

        Raises WrongArchive if another cluster owns the archive: nothing may be written there.
        Raises InvalidConfig if the store cannot keep manifests safe.
        """
        if self._asking is None:
            claim = partial(_claim, self._store, self._ours, self._mark)
            self._asking = asyncio.get_running_loop().run_in_executor(self._worker, claim)
            # If the start ends meanwhile, no caller reads the request's error.
            self._asking.add_done_callback(_note_failure)
        asking = self._asking
        # What is answered in the turn in which the time ends is an answer.
        await asyncio.wait((asking,), timeout=wait_s)
        if not asking.done():
            self.failure = TierUnavailable(CLUSTER_KEY, "put", f"no answer in {wait_s} s")
            self._note(_AWAY, self.failure)
            return self._is_ours
        # The next attempt must not get an old answer.
        self._asking = None
        try:
            answer = await result_of(asking)
        except TierError as error:
            self.failure = error
            self._note(_AWAY if isinstance(error, TierUnavailable) else _UNREADABLE, error)
            return self._is_ours
        except DiskError as error:
            self.failure = None
            self._note(_AWAY, error)
            return self._is_ours
        self.failure = None
        if answer.info is not None:
            self._check_owner(answer.info)
            self._is_ours = True
        self._note_writes(answer)
        return self._is_ours

    def report_to(self, tiering: TieringManager) -> None:
        """Tells what the last attempt says of the store, if it reached it."""
        if self._is_ours or self.failure is not None or self.refusal is not None:
            tiering.note_claim(self.failure, self.refusal)

    async def check(self) -> None:
        """Checks that the archive is still ours; writes a deleted cluster.json again.

        Raises WrongArchive if another cluster owns it, and StorageError if the store fails.
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._worker)
        found = await run(load_cluster_info, self._store)
        if found is None:
            self.deleted_count += 1
            log.warning(
                "cluster.json was deleted in the bucket, it is written again",
                extra={"fields": {"url": self._store.url}},
            )
            found = await run(_found_or_created, self._store, self._ours)
        self._is_ours = found.cluster_id == self._ours.cluster_id
        self._check_owner(found)

    def _check_owner(self, theirs: ClusterInfo) -> None:
        if theirs.cluster_id != self._ours.cluster_id:
            raise WrongArchive(
                f"{self._store.url} belongs to cluster {theirs.cluster_id}, the log folders to "
                f"{self._ours.cluster_id}: point strandline.remote.url at an empty prefix, or "
                f"log.dirs at the folders of {theirs.cluster_id}. If those are lost: "
                "`strandline restore`"
            )

    def _note_writes(self, answer: _Answer) -> None:
        before, self.refusal = self.refusal, answer.refusal
        self.conditions = answer.conditions or self.conditions
        if answer.refusal is not None:
            forbidden, full = (_FORBIDDEN, _FULL) if self._is_ours else (_FORBIDDEN_NEW, _FULL_NEW)
            is_full = isinstance(answer.refusal, StoreFull)
            self._note(full if is_full else forbidden, answer.refusal)
        elif before is not None:
            self._noted = ""
            log.info("remote tier takes writes again", extra={"fields": {"url": self._store.url}})

    def _note(self, event: str, error: StorageError) -> None:
        """Logs why the claim is incomplete, once per kind of reason."""
        noted = f"{event} {type(error).__name__}"
        # Other parts report a store that becomes unreachable after the claim.
        is_told = noted == self._noted or (event == _AWAY and self._is_ours)
        log.log(
            logging.DEBUG if is_told else logging.WARNING,
            event,
            extra={"fields": {"url": self._store.url, "error": str(error)}},
        )
        self._noted = noted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A store's answer to a claim.

    `info` is the archive's owner, None without one; `refusal` the error of a refused write. A store
    that accepted the writes honours `conditions`.
    """

    info: ClusterInfo | None
    refusal: TierError | None = None
    conditions: Conditions | None = None


def _note_failure(asking: asyncio.Future[_Answer]) -> None:
    if not asking.cancelled():
        asking.exception()


def _claim(store: ObjectStore, ours: ClusterInfo, mark: ArchiveMark | None) -> _Answer:
    """Claims the archive if it has no owner, and returns its owner; blocks.

        1 check that an archive seen before is there   2 check the store's conditional writes
        3 find or write cluster.json                   4 mark the archive as seen on this disk

    Nothing is written before 1: it may be the mount point of a volume that is not mounted. If the
    store refuses the writes of 2, the writer of an existing cluster.json has checked it. Raises
    InvalidConfig if the store cannot keep manifests safe, TierError if it fails, and DiskError if
    the mark cannot be read.
    """
    if mark is not None and mark.is_set and not cluster_id_or_damage(store)[0]:  # 1
        raise TierUnavailable(
            CLUSTER_KEY,
            "get",
            f"{store.url} held this broker's archive, and is empty: is its volume mounted?"
            f" To begin a new archive there, remove {mark.path}",
        )
    try:
        conditions = check_conditional_writes(store)  # 2
        answer = _Answer(info=_found_or_created(store, ours), conditions=conditions)  # 3
    except (AccessDenied, StoreFull) as refusal:
        answer = _Answer(info=load_cluster_info(store), refusal=refusal)
    found = answer.info
    if mark is not None and found is not None and found.cluster_id == ours.cluster_id:
        mark.set()  # 4
    return answer


def _found_or_created(store: ObjectStore, ours: ClusterInfo) -> ClusterInfo:
    """Finds or writes cluster.json; if it is lost, the mirrored metadata name the owner."""
    if load_cluster_info(store) is None and (owner := cluster_of(store)) not in (
        "",
        ours.cluster_id,
    ):
        return ClusterInfo(cluster_id=owner)
    return create_cluster_info(store, ours)

"""`strandline archive orphans`: lists unreferenced objects, and deletes them after confirmation.

exit code   0  listed, and deleted if requested
            2  wrong arguments, or the deletion was not confirmed
            3  a partition could not be compared, or lacks objects of its manifest
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from strandline.broker.commands.archive.commands import DAMAGED
from strandline.broker.commands.archive.tables import WHERE_IT_IS
from strandline.broker.commands.progress import Working
from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.tables import Column, print_table
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig, UnknownTopic
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.tiering.audit.orphans import (
    OWNED_REASONS,
    PARALLEL_MAX,
    SAFE_REASONS,
    Orphan,
    compare,
    delete_orphans,
    time_of_both,
)


def orphans(
    store: ObjectStore,
    *,
    topic: str | None,
    delete: bool,
    delete_all: bool,
    yes: bool,
    grace_hours: float,
) -> int:
    """Lists unreferenced objects, and deletes them on request; returns the exit code.

    `delete` deletes those that a readable manifest does not name; `delete_all` also those that a
    lost or newer manifest may own, or a lost topic.json. Without `yes` it asks first.
    """
    store.check()
    grace_ms = int(grace_hours * 3_600_000)
    now_ms = time_of_both(store, SystemClock())
    with (
        Working("objects compared with their manifests") as counting,
        ThreadPoolExecutor(PARALLEL_MAX, "orphans") as executor,
    ):
        found = compare(
            store,
            now_ms=now_ms,
            grace_ms=grace_ms,
            topic=topic,
            executor=executor,
            on_objects=counting.advance,
        )
    if not found.object_count and load_cluster_info(store) is None:
        raise InvalidConfig(f"nothing is archived at {store.url}: {WHERE_IT_IS}")
    if topic is not None and not found.object_count:
        raise UnknownTopic(f"no topic {topic!r} is archived at {store.url}")
    if found.orphans:
        _print_orphans(store, found.orphans)
    for row in found.unreadable:
        print(f"strandline: {row.partition} not looked at: {row.reason}", file=sys.stderr)
    chosen = [o for o in found.orphans if delete_all or (delete and o.reason in SAFE_REASONS)]
    if chosen:
        _print_doubtful(chosen)
        confirm(
            f"{counted(len(chosen), 'object')} ({_total(chosen)}) to be deleted for good", yes=yes
        )
    with Working("deleting"):
        delete_orphans(store, chosen)
    print(
        f"orphans older than {grace_hours:g} h: {len(found.orphans):,} of"
        f" {counted(found.object_count, 'object')} ({_total(found.orphans)}),"
        f" {len(chosen):,} deleted"
    )
    if found.missing_keys:
        print(
            f"strandline: {counted(len(found.missing_keys), 'object')} missing that manifests"
            " name: `strandline archive verify` says which, and what to do",
            file=sys.stderr,
        )
    return DAMAGED if found.unreadable or found.missing_keys else 0


def _print_doubtful(chosen: Sequence[Orphan]) -> None:
    """Prints objects that may be the only copy of records, by partition."""
    owned = [orphan for orphan in chosen if orphan.reason in OWNED_REASONS]
    for folder, group in itertools.groupby(owned, key=lambda orphan: _partition_folder(orphan.key)):
        of_folder = list(group)
        print(
            f"strandline: {folder}: {counted(len(of_folder), 'object')} ({_total(of_folder)}) that"
            " a lost manifest or topic.json may own: their records may be nowhere else",
            file=sys.stderr,
        )


def _partition_folder(key: str) -> str:
    """Returns `topics/<topic>-<id>/<partition>/`, or the part of it that exists."""
    return "/".join(key.split("/")[:3])


def _total(found: Sequence[Orphan]) -> str:
    return human_bytes(sum(orphan.size_bytes for orphan in found))


def _print_orphans(store: ObjectStore, found: Sequence[Orphan]) -> None:
    print_table(
        f"objects that nothing refers to, {store.url}",
        [Column(name="size", is_right=True), Column(name="why", rank=1), "object"],
        [(human_bytes(orphan.size_bytes), orphan.reason.value, orphan.key) for orphan in found],
    )

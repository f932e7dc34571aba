"""`strandline archive usage`: billed bytes and objects of an archive and, given prices, its cost.

Prices differ by region and contract, and change: the user gives them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from strandline.broker.commands.archive.tables import WHERE_IT_IS, human_time
from strandline.broker.commands.prices import digits
from strandline.broker.commands.progress import Working
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import Json, print_json, say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig, StorageError
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.object_store.interface import AGE_UNKNOWN, ObjectStore
from strandline.storage.remote.s3.store import S3Store
from strandline.storage.remote.s3.usage import ObjectVersion, UnfinishedUpload
from strandline.storage.tiering.audit.orphans import PARALLEL_MAX, BucketComparison, compare
from strandline.storage.tiering.audit.usage import Sum, Usage, sum_up

T = TypeVar("T")

GIB = 1024**3
# A folder has no storage classes.
FOLDER_CLASS = "folder"
# How many objects one listing of S3 returns.
COUNTED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """The counts, and the reasons for missing ones."""

    usage: Usage
    uploads: Sequence[UnfinishedUpload] | None
    comparison: BucketComparison | None
    unknown: Mapping[str, str]


def print_usage(store: ObjectStore, *, prices: Mapping[str, float], as_json: bool) -> int:
    """The exit code. `prices`: per GiB and month, by storage class. Raises StrandlineError."""
    store.check()
    with Working("objects listed") as counting, ThreadPoolExecutor(PARALLEL_MAX) as executor:
        looked = _look(store, executor, counting)
    if not looked.usage.current.object_count:
        raise InvalidConfig(f"nothing is archived at {store.url}: {WHERE_IT_IS}")
    strangers = sorted(set(prices) - set(looked.usage.by_class))
    if strangers:
        known = ", ".join(sorted(looked.usage.by_class))
        raise WrongUse(f"nothing lies in the storage class {strangers[0]!r}; there is: {known}")
    if as_json:
        print_json(_document(store, looked, prices))
    else:
        _print_tables(store, looked, prices)
    return 0


# --- reading ---------------------------------------------------------------------------------


def _look(store: ObjectStore, executor: Executor, counting: Working) -> _Looked:
    unknown: dict[str, str] = {}

    def try_to(name: str, look: Callable[[], T]) -> T | None:
        """Runs a request that may be refused without invalidating the rest."""
        try:
            return look()
        except StorageError as error:
            unknown[name] = str(error)
            return None

    uploads: Sequence[UnfinishedUpload] | None = None
    if isinstance(store, S3Store):
        s3 = store.usage
        usage = try_to("versions", lambda: sum_up(_counted_on(s3.versions(), counting)))
        usage = usage or sum_up(_counted_on(s3.objects(), counting))
        uploads = try_to("unfinished uploads", lambda: list(s3.unfinished_uploads()))
    else:
        usage = sum_up(_counted_on(_files(store), counting))
    counting.begin("objects compared with their manifests")
    comparison = try_to(
        "orphans",
        lambda: compare(
            store,
            now_ms=SystemClock().now_ms(),
            executor=executor,
            on_objects=counting.advance,
        ),
    )
    return _Looked(usage=usage, uploads=uploads, comparison=comparison, unknown=unknown)


def _counted_on(versions: Iterator[ObjectVersion], counting: Working) -> Iterator[ObjectVersion]:
    while page := list(itertools.islice(versions, COUNTED_AT_ONCE)):
        counting.advance(len(page))
        yield from page


def _files(store: ObjectStore) -> Iterator[ObjectVersion]:
    for info in store.list(""):
        yield ObjectVersion(
            key=info.key, size_bytes=info.size_bytes, storage_class=FOLDER_CLASS, is_current=True
        )


# --- printing --------------------------------------------------------------------------------


def _print_tables(store: ObjectStore, looked: _Looked, prices: Mapping[str, float]) -> None:
    usage = looked.usage
    _print_topics(f"archive {store.url}", looked)
    _print_sums("by kind", "objects of", usage.by_kind)
    _print_sums("by storage class, older versions included", "class", usage.by_class, prices)
    for line in _remarks(looked):
        say(line)


def _print_topics(title: str, looked: _Looked) -> None:
    """Prints what each topic takes, and how much of it only waits for its end."""
    usage = looked.usage
    marked = None if looked.comparison is None else looked.comparison.marked
    older = None if "versions" in looked.unknown else usage.older_by_topic
    names = sorted({*usage.by_topic, *(older or ()), *(marked or ())})
    rows = [
        (
            *_sum_cells(name or "(no topic)", usage.by_topic.get(name, Sum())),
            _size_or_dash(marked, name),
            _size_or_dash(older, name),
        )
        for name in names
    ]
    if len(rows) > 1:
        whole = (usage.current, _summed(marked), _summed(older))
        rows.append((*_sum_cells("all", whole[0]), *map(_size, whole[1:])))
    columns = ("objects", "size", "of it marked", "older versions")
    print_table(title, ["topic", *(Column(name=one, is_right=True) for one in columns)], rows)


def _summed(sums: Mapping[str, Sum] | None) -> Sum | None:
    if sums is None:
        return None
    found = sums.values()
    return Sum(sum(one.object_count for one in found), sum(one.size_bytes for one in found))


def _size_or_dash(sums: Mapping[str, Sum] | None, name: str) -> str:
    return _size(None if sums is None else sums.get(name, Sum()))


def _size(found: Sum | None) -> str:
    return "-" if found is None else human_bytes(found.size_bytes)


def _print_sums(
    title: str, name: str, sums: Mapping[str, Sum], prices: Mapping[str, float] | None = None
) -> None:
    numbers = ["objects", "size", *(["USD a month"] if prices else [])]
    rows = []
    whole = Sum()
    for key, found in sorted(sums.items()):
        whole.object_count += found.object_count
        whole.size_bytes += found.size_bytes
        cost = _cost(found, prices[key]) if prices and key in prices else None
        rows.append(_sum_cells(key, found) + ([_money(cost)] if prices else []))
    if len(sums) > 1:
        total = _total(sums, prices or {})
        rows.append(_sum_cells("all", whole) + ([_money(total)] if prices else []))
    print_table(title, [name, *(Column(name=one, is_right=True) for one in numbers)], rows)


def _sum_cells(name: str, found: Sum) -> list[str]:
    return [name, f"{found.object_count:,}", human_bytes(found.size_bytes)]


def _cost(found: Sum, price: float) -> float:
    return found.size_bytes / GIB * price


def _total(sums: Mapping[str, Sum], prices: Mapping[str, float]) -> float | None:
    """Returns None if a class has no price: a partial sum would be taken for the total."""
    if not all(name in prices for name in sums):
        return None
    return sum(_cost(found, prices[name]) for name, found in sums.items())


def _money(amount: float | None) -> str:
    if amount is None:
        return "-"
    return digits(amount)


def _remarks(looked: _Looked) -> Iterator[str]:
    usage = looked.usage
    yield (
        f"{_counted(usage.small)} under 128 KiB: the classes for rare access bill 128 KiB for"
        " each of them"
    )
    if FOLDER_CLASS in usage.by_class:
        pass
    elif "versions" not in looked.unknown:
        yield (
            f"older versions: {_counted(usage.older)},"
            f" {counted(usage.delete_marker_count, 'delete marker')}"
        )
    if looked.uploads is not None:
        known = (upload.begun_ms for upload in looked.uploads if upload.begun_ms != AGE_UNKNOWN)
        oldest = min(known, default=None)
        since = "" if oldest is None else f", the oldest of {human_time(oldest)}"
        size_bytes = sum(upload.size_bytes for upload in looked.uploads)
        yield (
            f"{counted(len(looked.uploads), 'unfinished upload')}"
            f" ({human_bytes(size_bytes)}){since}:"
            " `archive lifecycle --apply` lets the bucket abort what is unfinished"
        )
    if looked.comparison is not None:
        yield (
            f"marked for deletion: {_counted(_summed(looked.comparison.marked) or Sum())}; the"
            " broker deletes them, and `archive ls` leaves them out"
        )
        orphans = looked.comparison.orphans
        size_bytes = sum(orphan.size_bytes for orphan in orphans)
        yield (
            f"orphans older than a day: {counted(len(orphans), 'object')}"
            f" ({human_bytes(size_bytes)}): see `archive orphans`"
        )
    for name, reason in looked.unknown.items():
        yield f"not known: {name} ({reason})"


def _counted(found: Sum) -> str:
    return f"{counted(found.object_count, 'object')} ({human_bytes(found.size_bytes)})"


def _document(store: ObjectStore, looked: _Looked, prices: Mapping[str, float]) -> Json:
    usage = looked.usage
    total = _total(usage.by_class, prices)
    orphans = None if looked.comparison is None else looked.comparison.orphans
    uploads = looked.uploads
    return {
        "archive": store.url,
        "topics": _sums_json({n: s for n, s in usage.by_topic.items() if n}),
        "kinds": _sums_json(usage.by_kind),
        "storage_classes": _sums_json(usage.by_class),
        "small": _sum_json(usage.small),
        "older_versions": None if "versions" in looked.unknown else _sum_json(usage.older),
        "delete_markers": None if "versions" in looked.unknown else usage.delete_marker_count,
        "older_versions_by_topic": None
        if "versions" in looked.unknown
        else _sums_json({n: s for n, s in usage.older_by_topic.items() if n}),
        "marked_by_topic": None
        if looked.comparison is None
        else _sums_json(looked.comparison.marked),
        "unfinished_uploads": None
        if uploads is None
        else {"objects": len(uploads), "size_bytes": sum(u.size_bytes for u in uploads)},
        "orphans": None
        if orphans is None
        else {"objects": len(orphans), "size_bytes": sum(o.size_bytes for o in orphans)},
        "cost_per_month": None if total is None else f"{total:.4f}",
        "unknown": dict(looked.unknown),
    }


def _sums_json(sums: Mapping[str, Sum]) -> Json:
    return {name: _sum_json(found) for name, found in sorted(sums.items())}


def _sum_json(found: Sum) -> Json:
    return {"objects": found.object_count, "size_bytes": found.size_bytes}

"""Health checks on a broker's metrics, with the limits of the alerts in docs/reference/alerts.md.

Pure: takes the texts of `/metrics` and `/readyz`, returns checks. Each check passes or names its
trouble and the runbook for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.storage.plurals import counted

# As in the alert.
DESCRIPTORS_SHARE_MAX = 0.8
QUEUE_MS_MAX = 200.0
# The alert waits for five minutes. Of fewer requests since the start, 99 of 100 are nearly all, and
# one pause of the machine would look like a busy broker.
QUEUED_COUNT_MIN = 1000
# Less than one segment of the default size: the next one may not fit.
FREE_BYTES_MIN = 1024**3

# What it means that work for the archive fails.
LACKING_UPKEEP = {
    "purge": "objects of a deleted topic stay in the bucket",
    "groups": "a restore would lose the newest offsets of groups",
    "transactions": "a restore would lose the newest transactional ids",
    "list": "changes.json is old, so replicas ask for every manifest",
    "mirror": "a restore would lose the newest changes of topics",
    "look": "nobody looks whether objects were deleted",
}

REPLICA_LAG = "strandline_replica_lag_seconds"
# As in the alert.
REPLICA_LAG_S_MAX = 600.0

# Reasons why segments are never archived without an operator's action.
STUCK = {
    "gap": "records between the archive and the disk are missing; was the manifest lost?",
    "overlap": "the archive ends inside a segment of the disk: another broker wrote it",
    "fenced": "another broker owns the manifest",
}

# Errors of archive readers that do not pass by themselves.
UNREADABLE = {
    "missing": "objects that are gone",
    "corrupt": "damaged bytes",
    "archived": "objects in an archive class",
    "denied": "a refusal (403)",
}

# Reasons why the archive takes no writes, by the kind of error.
REFUSED = {
    "AccessDenied": "writing is forbidden: the credentials, or the bucket's policy",
    "StoreFull": "there is no room",
}

# What is done on a server that lacks a kind of request.
INSTEAD = {
    "checksums": "what is written is read back, as the server takes no checksums",
    "multipart": "large segments go in one request, as the server takes no parts",
    "batch_delete": "objects are deleted one by one",
}

_REFUSED_RUNBOOKS = {
    "AccessDenied": "accessdenied--credentials-or-policy",
    "StoreFull": "remote-tier-has-no-room--the-store-is-full",
}
_STORE = "runbooks/store"
_DELETED = "runbooks/archive-damage#were-deleted-in-the-bucket--metadata-were-deleted"
_BEHIND = "runbooks/store#metadata-does-not-reach-the-bucket"

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \S+)?")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One series of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """The result of one check: `trouble` is empty if all is well; `figure` is always set.

    `runbook` is what `strandline docs` takes: a page, and the anchor of its section. Without
    `is_known` nobody has looked: that is no trouble, and not well either.
    """

    what: str
    figure: str
    trouble: str = ""
    runbook: str
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTiers:
    """The bytes of a topic in each tier. Bytes in both tiers count in both."""

    topic: str
    local_bytes: int
    archive_bytes: int
    copy_lag_bytes: int
    delete_lag_bytes: int


class Page:
    """The parsed metrics of one broker."""

    def __init__(self, text: str) -> None:
        """Parses the samples; skips other lines."""
        self._samples: dict[str, list[MetricSample]] = {}
        for line in text.splitlines():
            found = None if line.startswith("#") else _SAMPLE.fullmatch(line.strip())
            if found is not None:
                labels = {
                    name: _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], value)
                    for name, value in _LABEL.findall(found[2] or "")
                }
                sample = MetricSample(name=found[1], labels=labels, value=float(found[3]))
                self._samples.setdefault(sample.name, []).append(sample)

    def all(self, name: str) -> Sequence[MetricSample]:
        return self._samples.get(name, ())

    def value(self, name: str, default: float = 0.0) -> float:
        """Returns the value of the series without labels."""
        return next((one.value for one in self.all(name) if not one.labels), default)

    def has(self, name: str) -> bool:
        return name in self._samples

    def by_label(self, name: str) -> Mapping[str, Page]:
        """Returns a page for each value of a label, without the label."""
        pages: dict[str, Page] = {}
        for samples in self._samples.values():
            for sample in samples:
                labels = dict(sample.labels)
                value = labels.pop(name, None)
                if value is not None:
                    page = pages.setdefault(value, Page(""))
                    own = replace(sample, labels=labels)
                    page._samples.setdefault(sample.name, []).append(own)  # noqa: SLF001
        return pages


def check_broker(page: Page, unready: str) -> list[HealthCheck]:
    """Runs all checks; `unready` is why clients cannot be served, empty if they can."""
    return [
        HealthCheck(
            what="serves clients",
            figure="no" if unready else "yes",
            trouble=unready,
            runbook="runbooks/machine#the-broker-is-down",
        ),
        _partitions(page),
        *_folders(page),
        *_compaction(page),
        *_transactions(page),
        *_archive(page),
        _descriptors(page),
        _loop(page),
    ]


def tiers(page: Page) -> list[TopicTiers]:
    """Returns the bytes of each topic, by name."""
    sizes: dict[str, dict[str, float]] = {}
    for sample in page.all("strandline_log_tier_bytes"):
        by_tier = sizes.setdefault(sample.labels.get("topic", ""), {})
        tier = sample.labels.get("tier", "")
        by_tier[tier] = by_tier.get(tier, 0.0) + sample.value
    copy_lag = _by_topic(page, "kafka_server_brokertopicmetrics_remotecopylagbytes")
    delete_lag = _by_topic(page, "kafka_server_brokertopicmetrics_remotedeletelagbytes")
    return [
        TopicTiers(
            topic=topic,
            local_bytes=int(by_tier.get("local", 0)),
            archive_bytes=int(by_tier.get("remote", 0)),
            copy_lag_bytes=int(copy_lag.get(topic, 0)),
            delete_lag_bytes=int(delete_lag.get(topic, 0)),
        )
        for topic, by_tier in sorted(sizes.items())
    ]


def store_requests(page: Page) -> dict[str, int]:
    """Requests to the object store since the broker's start, by operation."""
    return {
        sample.labels.get("operation", ""): int(sample.value)
        for sample in page.all("strandline_remote_requests_total")
        if sample.value
    }


# --- single checks ---------------------------------------------------------------------------


def _partitions(page: Page) -> HealthCheck:
    count = int(page.value("kafka_server_replicamanager_partitioncount"))
    offline = int(page.value("kafka_server_replicamanager_offlinereplicacount"))
    trouble = f"{counted(offline, 'partition')} offline; the log says why" if offline else ""
    return HealthCheck(
        what="partitions",
        figure=f"{count:,}",
        trouble=trouble,
        runbook="runbooks/disk#log-folder-offline--a-disk-failed",
    )


def _folders(page: Page) -> Iterator[HealthCheck]:
    for sample in page.all("strandline_log_directory_free_bytes"):
        trouble = "" if sample.value >= FREE_BYTES_MIN else "the disk is nearly full"
        folder = sample.labels.get("directory", "")
        figure = f"{sample.value / 1024**3:,.1f} GiB free"
        yield HealthCheck(
            what=f"disk of {folder}",
            figure=figure,
            trouble=trouble,
            runbook="runbooks/disk#log-folder-full-append-failed--disk-full",
        )


def _compaction(page: Page) -> Iterator[HealthCheck]:
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
    if page.has(name):
        count = int(page.value(name))
        trouble = f"{counted(count, 'log')} cannot be compacted; the log says why" if count else ""
        yield HealthCheck(
            what="compaction",
            figure="stuck" if count else "works",
            trouble=trouble,
            runbook="runbooks/compaction#log-cannot-be-compacted",
        )


def _transactions(page: Page) -> Iterator[HealthCheck]:
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    if page.has(name):
        late = int(page.value(name))
        count = int(
            sum(
                sample.value
                for sample in page.all("strandline_transactional_ids")
                if sample.labels.get("state") == "Ongoing"
            )
        )
        trouble = f"one hangs in {counted(late, 'partition')}; the log says which" if late else ""
        yield HealthCheck(
            what="transactions",
            figure=f"{count:,} open",
            trouble=trouble,
            runbook="runbooks/groups#transaction-hangs--read_committed-consumers-stop",
        )


def _archive(page: Page) -> Iterator[HealthCheck]:
    """Checks of the remote tier. One trouble of the store explains all that waits for it."""
    if not page.has("strandline_remote_up"):
        yield HealthCheck(what="archive", figure="there is no remote tier", runbook="")
        return
    store, writes = _store(page), _writes(page)
    if page.has(REPLICA_LAG):
        writes = replace(writes, figure="none: this is a read-only replica")
    is_down = bool(store.trouble)
    if is_down:
        writes = replace(writes, figure="not known", trouble="")
    yield store
    yield writes
    for check in _work_on_store(page):
        if check.trouble and (is_down or writes.trouble):
            yield replace(check, figure="waits for the store", trouble="")
        else:
            yield check
    yield _stuck(page)
    if not page.has(REPLICA_LAG):
        yield _deleted(page)
    yield _reads(page)


def _store(page: Page) -> HealthCheck:
    down = page.all("strandline_remote_down_seconds")
    is_up = page.value("strandline_remote_up") == 1
    is_refused = bool(down) and down[0].labels.get("error") in REFUSED
    figure = "refuses reads" if is_refused else "unreachable"
    if is_up:
        answers = page.all("strandline_remote_last_answer_seconds")
        told = [f"a {one.labels.get('what')} {one.value:,.0f} s ago" for one in answers]
        figure = f"answered {' and '.join(told)}" if told else "answers"
    trouble = "" if is_up else "nothing is archived, and nothing freed"
    if down:
        trouble = f"for {down[0].value:,.0f} s {trouble}: {down[0].labels.get('reason', '')}"
    anchor = (
        _REFUSED_RUNBOOKS["AccessDenied"]
        if is_refused
        else "remote-tier-is-unreachable--the-object-store-is-unreachable"
    )
    return HealthCheck(
        what="object store", figure=figure, trouble=trouble, runbook=f"{_STORE}#{anchor}"
    )


def _upkeep(page: Page) -> HealthCheck:
    """Work for the archive that is of no partition; each kind is named with what it costs."""
    failing = page.all("strandline_remote_upkeep_failing_seconds")
    longest: dict[str, MetricSample] = {}
    for sample in sorted(failing, key=lambda sample: -sample.value):
        longest.setdefault(sample.labels.get("activity", ""), sample)
    return HealthCheck(
        what="groups, deleted topics",
        figure="fails" if failing else "works",
        trouble="; ".join(
            f"{LACKING_UPKEEP.get(activity, activity)} ({one.labels.get('subject')} for"
            f" {one.value:,.0f} s: {one.labels.get('error')})"
            for activity, one in longest.items()
        ),
        runbook=f"{_STORE}#tiering-does-not-succeed--copying-fails-with-an-error",
    )


def _replica(page: Page) -> HealthCheck:
    lag_s = page.value(REPLICA_LAG)
    is_late = lag_s > REPLICA_LAG_S_MAX
    return HealthCheck(
        what="read-only replica",
        figure=f"{lag_s:,.0f} s behind what its origin archived",
        trouble="it does not get on; the log says why" if is_late else "",
        runbook=f"{_STORE}#tiering-does-not-succeed--copying-fails-with-an-error",
    )


def _work_on_store(page: Page) -> Iterator[HealthCheck]:
    """The checks that a store explains that is down or refuses writes."""
    if page.has(REPLICA_LAG):
        yield _replica(page)
        failing = page.all("strandline_remote_copy_failing_seconds")
        yield HealthCheck(
            what="reading manifests",
            figure="fails" if failing else "works",
            trouble=_failing_text(failing) if failing else "",
            runbook=f"{_STORE}#tiering-does-not-succeed--copying-fails-with-an-error",
        )
        return
    is_owned = page.value("strandline_remote_archive_owned", 1.0) == 1
    yield HealthCheck(
        what="owns the archive",
        figure="yes" if is_owned else "no",
        trouble="" if is_owned else "another broker does, or it is not known yet; see the log",
        runbook="runbooks/copying#the-archive-is-another-brokers--two-brokers-with-one-identity",
    )
    for what, name in (
        ("archiving", "strandline_remote_copy_failing_seconds"),
        ("deleting in the archive", "strandline_remote_delete_failing_seconds"),
    ):
        failing = page.all(name)
        yield HealthCheck(
            what=what,
            figure="fails" if failing else "works",
            trouble=_failing_text(failing) if failing else "",
            runbook=f"{_STORE}#tiering-does-not-succeed--copying-fails-with-an-error",
        )
    yield _upkeep(page)
    behind = int(page.value("strandline_metadata_mirror_lag"))
    yield HealthCheck(
        what="metadata in the bucket",
        figure="up to date" if not behind else f"{counted(behind, 'change')} behind",
        trouble="the log says why, if it stays so" if behind else "",
        runbook=_BEHIND,
    )


def _reads(page: Page) -> HealthCheck:
    """Errors of readers since the start; some readers stay stuck until an operator acts."""
    met = [
        f"{UNREADABLE[reason]} {counted(int(sample.value), 'time')}"
        for sample in page.all("strandline_cold_failures_total")
        if sample.value and (reason := sample.labels.get("reason", "")) in UNREADABLE
    ]
    told = f"since the start: {', '.join(met)}; `archive verify` says what to do"
    return HealthCheck(
        what="reads of the archive",
        figure="met damage" if met else "no failures",
        trouble=told if met else "",
        runbook="runbooks/archive-damage#archived-object-cannot-be-read--cold-reads-fail",
    )


def _deleted(page: Page) -> HealthCheck:
    """Objects written again after a deletion: the deleting client may delete more."""
    found = [
        f"{counted(int(sample.value), 'object')} of {sample.labels.get('object')}"
        for sample in page.all("strandline_remote_deleted_objects_total")
        if sample.value
    ]
    trouble = f"{', '.join(found)} deleted in the bucket since the start" if found else ""
    figure = "deleted, written again" if found else "present"
    return HealthCheck(what="metadata objects", figure=figure, trouble=trouble, runbook=_DELETED)


def _writes(page: Page) -> HealthCheck:
    """Returns whether the store accepts writes, and whether they are safe beside another broker."""
    refused = page.all("strandline_remote_writes_refused_seconds")
    if refused:
        kind = refused[0].labels.get("error", "")
        reason = refused[0].labels.get("reason", "")
        why = f"{REFUSED.get(kind, kind)}; what is archived is served, nothing is copied: {reason}"
        trouble = f"for {refused[0].value:,.0f} s {why}"
        return HealthCheck(
            what="writes to the archive",
            figure="refused",
            trouble=trouble,
            runbook=f"{_STORE}#{_REFUSED_RUNBOOKS.get(kind, _REFUSED_RUNBOOKS['AccessDenied'])}",
        )
    is_safe = page.value("strandline_remote_conditions_atomic", 1.0) == 1
    # With one broker it is safe: this is shown, and is no alert.
    figure = "taken" if is_safe else "taken, safe with this broker alone; see the log of its start"
    lacking = [one.labels.get("request", "") for one in page.all("strandline_remote_lacking")]
    figure = "; ".join((figure, *(INSTEAD.get(name, f"without {name}") for name in lacking)))
    return HealthCheck(what="writes to the archive", figure=figure, runbook="")


def _stuck(page: Page) -> HealthCheck:
    """Segments that wait for an operator's action; the others wait for their turn."""
    waiting = page.all("strandline_remote_copy_waiting_segments")
    stuck = [sample for sample in waiting if sample.value and sample.labels.get("reason") in STUCK]
    count = int(sum(sample.value for sample in waiting))
    trouble = ""
    if stuck:
        worst = max(stuck, key=lambda sample: sample.value)
        trouble = f"{worst.labels.get('topic')}: {STUCK[worst.labels['reason']]}"
    figure = counted(count, "segment")
    held = page.all("strandline_remote_copy_held_seconds")
    if held:
        figure = f"{figure}; {_held_text(held)}"
    return HealthCheck(
        what="waiting for the archive",
        figure=figure,
        trouble=trouble,
        runbook="runbooks/copying#copying-has-stopped--gap-overlap-or-fenced",
    )


def _held_text(held: Sequence[MetricSample]) -> str:
    """The transaction that has kept segments from the archive for longest."""
    longest = max(held, key=lambda sample: sample.value)
    labels = longest.labels
    name, producer = labels.get("transactional_id"), f"producer {labels.get('producer_id')}"
    return (
        f"{labels.get('topic')}-{labels.get('partition')}:"
        f" {f'{name!r} ({producer})' if name else producer} has"
        f" had a transaction open since offset {labels.get('start_offset')}, for"
        f" {longest.value:,.0f} s; it ends at its timeout, or with kafka-transactions.sh abort"
    )


def _failing_text(failing: Sequence[MetricSample]) -> str:
    longest = max(failing, key=lambda sample: sample.value)
    labels = longest.labels
    others = f" (and {len(failing) - 1:,} more)" if len(failing) > 1 else ""
    kind = labels.get("error", "")
    why = f"{kind} ({REFUSED[kind]})" if kind in REFUSED else kind
    return (
        f"{labels.get('topic')}-{labels.get('partition')}{others} for {longest.value:,.0f} s: {why}"
    )


def _descriptors(page: Page) -> HealthCheck:
    used, most = page.value("process_open_fds"), page.value("process_max_fds", 1.0)
    is_high = used > DESCRIPTORS_SHARE_MAX * most
    return HealthCheck(
        what="open files",
        figure=f"{used:,.0f} of {most:,.0f}",
        trouble="nearly all that it may have: ulimit -n" if is_high else "",
        runbook="runbooks/machine#accepting-paused--too-many-open-files",
    )


def _loop(page: Page) -> HealthCheck:
    name = "kafka_network_requestmetrics_requestqueuetimems"
    counts = {one.labels.get("request"): one.value for one in page.all(f"{name}_count")}
    waits = (
        sample.value
        for sample in page.all(name)
        if sample.labels.get("quantile") == "0.99" and sample.value == sample.value  # no NaN
        if counts.get(sample.labels.get("request"), 0) >= QUEUED_COUNT_MIN
    )
    longest_ms = max(waits, default=0.0)
    return HealthCheck(
        what="requests wait",
        figure=f"{longest_ms:,.0f} ms at the 99th percentile",
        trouble="the broker's one core is busy" if longest_ms > QUEUE_MS_MAX else "",
        runbook="runbooks/machine#requests-wait--the-brokers-one-core-is-busy",
    )


def _by_topic(page: Page, name: str) -> dict[str, float]:
    samples = page.all(name)
    return {one.labels["topic"]: one.value for one in samples if one.labels.get("topic")}

"""The loss if a broker's machine burned now, in words, from its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.broker.tools.client.health import HealthCheck, Page
from strandline.storage.plurals import counted, human_bytes, human_seconds

# As in the alert: a slow store, or a large backlog after an outage, takes minutes.
LATE_S_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicExposure:
    """The records of a topic that one machine alone has; `age_s` is that of the oldest."""

    records: int = 0
    size_bytes: int = 0
    age_s: float = 0.0
    late_s: float = 0.0


def exposed_topics(page: Page) -> dict[str, TopicExposure]:
    """Returns what would be lost of each topic that has an archive, and of all as topic ""."""
    records = _by_topic(page, "strandline_exposed_records", tiered="true")
    size_bytes = _by_topic(page, "strandline_exposed_bytes", tiered="true")
    ages_s = _by_topic(page, "strandline_exposed_seconds")
    late_s = _by_topic(page, "strandline_exposed_late_seconds")
    return {
        topic: TopicExposure(
            records=int(count),
            size_bytes=int(size_bytes.get(topic, 0)),
            age_s=ages_s.get(topic, 0.0),
            late_s=late_s.get(topic, 0.0),
        )
        for topic, count in records.items()
    }


def loss_line(page: Page) -> str:
    """`50,000 records (4.8 MiB) of 2 topics, the oldest 42 s old`, and what else is at stake."""
    if not page.has("strandline_exposed_records"):
        return "every record would be lost: there is no remote tier"
    topics = exposed_topics(page)
    total = topics.pop("", TopicExposure())
    touched = sum(1 for one in topics.values() if one.records)
    said = "no record of a topic with an archive would be lost"
    if total.records:
        said = (
            f"{_amount(total.records, total.size_bytes)} of {counted(touched, 'topic')} would be"
            f" lost, the oldest {human_seconds(total.age_s)} old"
        )
    unknown = int(page.value("strandline_exposed_unknown_partitions"))
    if unknown:
        said = f"{said}; not known of {counted(unknown, 'partition')}, whose archive is not read"
    changes = int(page.value("strandline_metadata_mirror_lag"))
    if changes > 0:
        said = f"{said}; {counted(changes, 'change')} of topics too"
    alone = _by_topic(page, "strandline_exposed_records", tiered="false")
    alone_records = int(alone.pop("", 0))
    if alone_records:
        alone_bytes = int(_by_topic(page, "strandline_exposed_bytes", tiered="false").get("", 0))
        there = counted(sum(1 for count in alone.values() if count), "topic")
        said = f"{said}; {_amount(alone_records, alone_bytes)} of {there} without an archive too"
    return said


def check_exposure(page: Page) -> HealthCheck:
    """Whether all records reach the bucket in the time that their topic's properties promise."""
    topics = exposed_topics(page)
    topics.pop("", None)
    late = {topic: one for topic, one in topics.items() if one.late_s > LATE_S_MAX}
    trouble = ""
    if late:
        worst = max(late, key=lambda topic: late[topic].late_s)
        others = f" (and {counted(len(late) - 1, 'other topic')})" if len(late) > 1 else ""
        trouble = (
            f"{worst}{others}: {_amount(late[worst].records, late[worst].size_bytes)} should have"
            f" been in the bucket {human_seconds(late[worst].late_s)} ago"
        )
    return HealthCheck(
        what="only on this machine",
        figure="longer than promised" if late else "no longer than promised",
        trouble=trouble,
        runbook="runbooks/copying#records-on-one-machine-alone",
        is_known=not page.value("strandline_exposed_unknown_partitions"),
    )


def _amount(record_count: int, size_bytes: int) -> str:
    return f"{counted(record_count, 'record')} ({human_bytes(size_bytes)})"


def _by_topic(page: Page, name: str, **labels: str) -> dict[str, float]:
    return {
        sample.labels.get("topic", ""): sample.value
        for sample in page.all(name)
        if labels.items() <= sample.labels.items()
    }


def check_verified(page: Page, now_s: float) -> HealthCheck:
    """When the objects of the archive were last looked at, and how; its findings are trouble."""
    runs = {
        sample.labels.get("depth", ""): sample.value
        for sample in page.all("strandline_archive_verified_timestamp_seconds")
    }
    findings = {
        sample.labels.get("depth", ""): int(sample.value)
        for sample in page.all("strandline_archive_verify_findings")
    }
    told = [
        f"{human_seconds(max(0.0, now_s - finished_s))} ago ({depth})"
        for depth, finished_s in sorted(runs.items(), key=lambda run: -run[1])
    ]
    # A later check that looks less closely need not see what a closer one has found.
    left = max(
        (
            count
            for depth, count in findings.items()
            if count and not any(_overrules(other, depth, runs, findings) for other in runs)
        ),
        default=0,
    )
    return HealthCheck(
        what="archive verified",
        figure=", ".join(told) or "never: segments that are gone or damaged would go unseen",
        trouble=f"{counted(left, 'finding')}; `strandline archive verify` names them"
        if left
        else "",
        runbook="runbooks/archive-damage#archived-object-cannot-be-read--cold-reads-fail",
        is_known=bool(runs),
    )


_DEPTHS = ("sizes", "checksums", "everything")


def _overrules(
    other: str, depth: str, runs: Mapping[str, float], findings: Mapping[str, int]
) -> bool:
    """Whether a later check, at least as close, found nothing."""
    are_known = other in _DEPTHS and depth in _DEPTHS
    is_as_close = are_known and _DEPTHS.index(other) >= _DEPTHS.index(depth)
    return is_as_close and runs[other] > runs.get(depth, 0.0) and not findings.get(other)

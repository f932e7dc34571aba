"""`strandline status`: health checks and tier sizes of all brokers on one page.

The brokers report the addresses of their metrics over the Kafka protocol; with `--metrics`, which
names the addresses, no Kafka client is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.exposure import (
    TopicExposure,
    check_exposure,
    check_verified,
    exposed_topics,
    loss_line,
)
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.health import (
    HealthCheck,
    Page,
    TopicTiers,
    check_broker,
    store_requests,
    tiers,
)
from strandline.broker.tools.client.printing import Json, print_json, say
from strandline.broker.tools.client.tables import print_table
from strandline.broker.tools.commands.command_parser import connect
from strandline.broker.tools.nodes.metrics_reader import METRICS_KEY, MetricsReader, Unready
from strandline.broker.tools.nodes.pages import (
    CONTROLLER,
    away,
    by_node,
    check_controller,
    is_up,
    reachable,
)
from strandline.broker.tools.nodes.replication import check_replication
from strandline.storage.clock import SystemClock
from strandline.storage.plurals import counted, human_bytes, human_seconds
from strandline.storage.system.host_names import is_host_name

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import Cluster

# As in `strandline verify`: the check ran, and found a problem.
TROUBLE = 3
_DAY_S = 86_400.0
# Clears a terminal, and begins at its top.
_CLEARED = "\x1b[2J\x1b[H"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The metrics of one broker, and the checks on them."""

    name: str
    url: str
    page: Page
    checks: Sequence[HealthCheck]
    # A controller has none, and of a process that is away nothing is known.
    has_records: bool = True

    @property
    def up_s(self) -> float:
        if not self.page.has("process_start_time_seconds"):
            return 0.0
        began_s = self.page.value("process_start_time_seconds")
        return max(0.0, SystemClock().now_ms() / 1000 - began_s)


def status(
    connection: ClusterConnection, urls: Sequence[str], *, as_json: bool, topics_max: int | None
) -> int:
    """Returns the exit code: 0 if all is well, 3 if not. Raises ToolFailure, WrongUse.

    Prints `topics_max` topics at most, those with most at stake first; None: all, by name.
    """
    named = [(url, _checked(url)) for url in urls] or list(_of_cluster(connect(connection)))
    reader = MetricsReader(connection.settings)
    seen = [one for name, url in named for one in _read_status(reader, name, url)]
    if as_json:
        print_json([_document(broker) for broker in seen])
    else:
        for broker in seen:
            _print(broker, topics_max)
    return TROUBLE if any(check.trouble for broker in seen for check in broker.checks) else 0


def watch(look: Callable[[], int], *, interval_s: float) -> int:
    """Looks again and again, until SIGINT; a broker that cannot be read is one line of it."""
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_CLEARED)
        try:
            look()
        except ToolFailure as failure:
            say(str(failure))
        sys.stdout.flush()
        Event().wait(interval_s)


# --- reading ---------------------------------------------------------------------------------


def _of_cluster(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yields the name and the metrics address of each broker; of a shared address the first."""
    known = set()
    for place in cluster.brokers():
        name = f"broker {place.node_id} at {place.host}:{place.port}"
        address = cluster.broker_config(place.node_id, METRICS_KEY)
        if not address:
            raise ToolFailure(
                f"{name} answers, and serves no metrics to tell more",
                remedy=f"set {METRICS_KEY}=http://127.0.0.1:9404 in its configuration",
            )
        address = reachable(address, place)
        if address not in known:
            known.add(address)
            yield name, address


def _checked(url: str) -> str:
    remedy = "write --metrics http://127.0.0.1:9404"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises if it is none
    except ValueError as error:
        raise WrongUse(f"{url!r} is no URL: {error}", remedy=remedy) from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or not is_host_name(host):
        raise WrongUse(f"{url!r} is no URL", remedy=remedy)
    return f"{parts.scheme}://{parts.netloc}"


def _read_status(reader: MetricsReader, name: str, url: str) -> Iterator[_Seen]:
    """Yields one broker, or all that the address is for."""
    page = Page(reader.get(f"{url}/metrics"))
    parts = by_node(page)
    for label, own in parts.items():
        is_broker = label != CONTROLLER
        of = f"broker {label}" if is_broker else label
        if not is_up(own):
            checks = [away()]
        else:
            checks = _checks(own, "") if is_broker else check_controller(own)
        has_records = is_broker and is_up(own)
        yield _Seen(name=of, url=url, page=own, checks=checks, has_records=has_records)
    if parts:
        return
    if not page.has("strandline_build_info"):
        raise ToolFailure(f"{url} serves no metrics of strandline")
    try:
        reader.get(f"{url}/readyz")
        unready = ""
    except Unready as error:
        unready = str(error)
    yield _Seen(name=name, url=url, page=page, checks=_checks(page, unready))


def _checks(page: Page, unready: str) -> list[HealthCheck]:
    checks = [*check_broker(page, unready), *check_replication(page)]
    if page.has("strandline_exposed_records"):
        now_s = SystemClock().now_ms() / 1000
        checks += [check_exposure(page), check_verified(page, now_s)]
    return checks


# --- printing --------------------------------------------------------------------------------


def _print(broker: _Seen, topics_max: int | None) -> None:
    if broker.has_records:
        say(f"if this machine burned now: {loss_line(broker.page)}")
    release = next(
        (s.labels.get("version", "") for s in broker.page.all("strandline_build_info")), ""
    )
    up = f"strandline {release}, up for {human_seconds(broker.up_s)}" if release else "no metrics"
    say(f"{broker.name}: {up}")
    width = max(len(check.what) for check in broker.checks)
    for check in broker.checks:
        mark = "✗" if check.trouble else "✓" if check.is_known else "?"
        trouble = f": {check.trouble}" if check.trouble else ""
        say(f"  {mark} {check.what.ljust(width)}  {check.figure}{trouble}")
    _print_topics(broker.page, topics_max)
    requests = store_requests(broker.page)
    if requests:
        days = max(broker.up_s, 1.0) / _DAY_S
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(requests.items()))
        total = sum(requests.values())
        rate = f"; {total / days:,.0f} a day" if days >= 1 else ""
        say(f"requests to the object store since the start: {counts}{rate}")
    runbooks = dict.fromkeys(check.runbook for check in broker.checks if check.trouble)
    is_known = all(check.is_known for check in broker.checks)
    well = "all is well" if is_known else "all is well, as far as anybody has looked"
    say("what to do:" if runbooks else well)
    for runbook in runbooks:
        say(f"  strandline docs {runbook}")


def _print_topics(page: Page, topics_max: int | None) -> None:
    found, exposed = tiers(page), exposed_topics(page)
    if topics_max is not None and len(found) > topics_max:
        found.sort(key=lambda topic: _stake(topic, exposed), reverse=True)
    shown = found[:topics_max]
    if not shown:
        return
    heads = ("topic", "on disk", "in the archive", "only here", "to be copied", "to be deleted")
    print_table("", heads, [_cells(topic, exposed.get(topic.topic)) for topic in shown])
    left = found[len(shown) :]
    if left:
        on_disk = human_bytes(sum(topic.local_bytes for topic in left))
        archived = human_bytes(sum(topic.archive_bytes for topic in left))
        say(
            f"and {counted(len(left), 'topic')} with less at stake: {on_disk} on disk, {archived}"
            " in the archive; --all-topics shows them"
        )


def _stake(topic: TopicTiers, exposed: Mapping[str, TopicExposure]) -> tuple[float, ...]:
    """What puts a topic first: lateness, records on one machine alone, and bytes."""
    at_stake = exposed.get(topic.topic, TopicExposure())
    return at_stake.late_s, at_stake.size_bytes, topic.copy_lag_bytes, topic.local_bytes


def _cells(topic: TopicTiers, exposed: TopicExposure | None) -> tuple[str, ...]:
    only_here = "-" if exposed is None else human_bytes(exposed.size_bytes)
    if exposed is not None and exposed.records:
        only_here = (
            f"{only_here}, {counted(exposed.records, 'record')}, {human_seconds(exposed.age_s)}"
        )
    return (
        topic.topic,
        human_bytes(topic.local_bytes),
        human_bytes(topic.archive_bytes),
        only_here,
        human_bytes(topic.copy_lag_bytes),
        human_bytes(topic.delete_lag_bytes),
    )


def _document(broker: _Seen) -> Json:
    return {
        "broker": broker.name,
        "metrics": broker.url,
        "up_seconds": int(broker.up_s),
        "ok": not any(check.trouble for check in broker.checks),
        "checks": [
            {
                "check": check.what,
                "figure": check.figure,
                "known": check.is_known,
                "trouble": check.trouble,
                "runbook": check.runbook if check.trouble else "",
            }
            for check in broker.checks
        ],
        "if_burned_now": loss_line(broker.page) if broker.has_records else None,
        "exposed": {
            topic: {
                "records": exposed.records,
                "size_bytes": exposed.size_bytes,
                "age_seconds": int(exposed.age_s),
                "late_seconds": int(exposed.late_s),
            }
            for topic, exposed in exposed_topics(broker.page).items()
        },
        "topics": [asdict(topic) for topic in tiers(broker.page)],
        "store_requests": store_requests(broker.page),
    }

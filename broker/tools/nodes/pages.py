"""The metrics of the nodes of a cluster: a page for each, or one for all with a label `broker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.client.health import HealthCheck, Page
from strandline.broker.tools.nodes.metrics_reader import METRICS_KEY, MetricsReader
from strandline.broker.tools.nodes.replication import behind_of
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import BrokerAddress, Cluster

# A broker that hangs is told of by others; it must not hold up who looks at all.
ANSWER_S_MAX: Final = 6.0
CONTROLLER: Final = "controller"
_UP: Final = "strandline_supervised_up"
_PREFIX: Final = "kafka_controller_kafkacontroller_"
_RUNBOOKS: Final = "runbooks/several-brokers"
_FENCED: Final = f"{_RUNBOOKS}#brokers-are-fenced--partitions-have-no-leader"
_AWAY: Final = f"{_RUNBOOKS}#a-process-does-not-answer--metrics-of-a-process-are-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What the metrics tell of a broker; None where they do not."""

    began_ms: int | None
    registration_state: int | None
    # By broker, for how many seconds it has not been in sync with what this one leads.
    behind_s: Mapping[int, float] = field(default_factory=dict)


def figures_of(
    connection: ClusterConnection, cluster: Cluster, node_ids: Sequence[int]
) -> Mapping[int, NodeFigures]:
    """Returns those of the brokers that serve metrics; as far as can be found out at once."""
    reader = MetricsReader(connection.settings, within_s=ANSWER_S_MAX)
    found: dict[int, NodeFigures] = {}
    asked = set()
    for place in cluster.brokers():
        if place.node_id in found or place.node_id not in node_ids:
            continue
        try:
            address = cluster.broker_config(place.node_id, METRICS_KEY, within_s=ANSWER_S_MAX)
            url = reachable(address or "", place)
            if not address or url in asked:
                continue
            asked.add(url)
            page = Page(reader.get(f"{url}/metrics"))
        except ToolFailure:
            continue
        for label, own in by_node(page).items() or [(str(place.node_id), page)]:
            if label.isdigit():
                found[int(label)] = _figures(own)
    return found


def _figures(page: Page) -> NodeFigures:
    began_s = page.value("process_start_time_seconds")
    state = page.value(f"{_PREFIX}brokerregistrationstate")
    return NodeFigures(
        began_ms=int(1000 * began_s) if began_s else None,
        registration_state=int(state) if state else None,
        behind_s=behind_of(page),
    )


def reachable(address: str, place: BrokerAddress) -> str:
    """Replaces a wildcard address by the broker's own name, which others know."""
    parts = urlsplit(address)
    if parts.hostname in (None, "", "0.0.0.0", "::"):
        return f"{parts.scheme}://{place.host}:{parts.port}"
    return address


def by_node(page: Page) -> Mapping[str, Page]:
    """Splits the page of several brokers by its label; nothing if it is that of one node."""
    if not page.has(_UP):
        return {}
    parts = page.by_label("broker")
    return {label: own for label, own in parts.items() if own.has(_UP)}


def is_up(page: Page) -> bool:
    """Whether the process of a part of such a page answered."""
    return page.value(_UP) == 1


def away() -> HealthCheck:
    """The check of a process that did not answer."""
    return HealthCheck(
        what="answers",
        figure="no",
        trouble="it is down, starts or hangs; the log says which",
        runbook=_AWAY,
    )


def check_controller(page: Page) -> list[HealthCheck]:
    """The checks of a controller."""
    active = int(page.value(f"{_PREFIX}activebrokercount"))
    fenced = int(page.value(f"{_PREFIX}fencedbrokercount"))
    count = int(page.value(f"{_PREFIX}globalpartitioncount"))
    offline = int(page.value(f"{_PREFIX}offlinepartitionscount"))
    return [
        HealthCheck(
            what="brokers",
            figure=f"{active:,} there",
            trouble=f"{counted(fenced, 'broker')} fenced" if fenced else "",
            runbook=_FENCED,
        ),
        HealthCheck(
            what="partitions",
            figure=f"{count:,}",
            trouble=f"{counted(offline, 'partition')} without a leader" if offline else "",
            runbook=_FENCED,
        ),
    ]

"""Checks on the replicas of what a broker leads, with the limits of the alerts."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.tools.client.health import HealthCheck, Page
from strandline.storage.plurals import counted, human_seconds

_PREFIX = "kafka_server_replicamanager_"
_OF_SEVERAL = "kafka_server_broker_metadata_metrics_last_applied_record_offset"
_RUNBOOKS = "runbooks/several-brokers"
BEHIND = f"{_RUNBOOKS}#replicas-are-not-in-sync"
TOO_FEW = f"{_RUNBOOKS}#too-few-replicas-are-in-sync--producers-are-refused"


def check_replication(page: Page) -> Iterator[HealthCheck]:
    """Yields nothing for a lone broker."""
    if not page.has(_OF_SEVERAL):
        return
    behind = int(page.value(f"{_PREFIX}underreplicatedpartitions"))
    refused = int(page.value(f"{_PREFIX}underminisrpartitioncount"))
    spareless = int(page.value("strandline_partitions_without_spare")) - refused
    yield HealthCheck(
        what="replicas",
        figure=f"{counted(behind, 'partition')} under-replicated" if behind else "in sync",
        trouble=_followers(page) if behind else "",
        runbook=BEHIND,
    )
    if refused:
        yield HealthCheck(
            what="acks=all",
            figure="refused",
            trouble=f"{counted(refused, 'partition')} with fewer replicas in sync than"
            " min.insync.replicas",
            runbook=TOO_FEW,
        )
    elif spareless:
        yield HealthCheck(
            what="acks=all",
            figure="no spare replica",
            trouble=f"{counted(spareless, 'partition')} at min.insync.replicas: with the next"
            " broker that is lost, producers are refused",
            runbook=TOO_FEW,
        )


def behind_of(page: Page) -> dict[int, float]:
    """Returns for how many seconds each follower has not been in sync with this leader."""
    return {
        int(one.labels["follower"]): one.value
        for one in page.all("strandline_follower_behind_seconds")
        if one.labels.get("follower", "").isdigit()
    }


def _followers(page: Page) -> str:
    counts = {
        one.labels.get("follower", ""): int(one.value)
        for one in page.all("strandline_follower_behind_partitions")
    }
    return "; ".join(
        f"broker {node_id} is not in sync with"
        f" {counted(counts.get(str(node_id), 0), 'partition')}, for {human_seconds(seconds)}"
        for node_id, seconds in sorted(behind_of(page).items())
    )


def loss_of_one(*, replicas: int, minimum: int, is_archived: bool, hosts: int) -> str:
    """Says what the loss of one broker costs a topic, in a line; `hosts` are those of brokers."""
    rest = "what is not in the archive" if is_archived else "all of it"
    what = "broker's disk" if hosts == 1 else "machine"
    of = f"{counted(replicas, 'replica')}, min.insync.replicas={minimum}"
    if replicas == 1:
        cost = f"costs {rest}, and nobody writes meanwhile"
    elif minimum == 1:
        cost = "may cost records that were acknowledged; min.insync.replicas=2 prevents that"
    elif minimum >= replicas:
        cost = "costs nothing acknowledged by acks=all, and refuses it until the broker is back"
    else:
        cost = "costs nothing acknowledged by acks=all, which goes on"
    if hosts == 1:
        cost += f"; all brokers are on one machine, whose loss costs {rest}"
    return f"{of}: the loss of one {what} {cost}"

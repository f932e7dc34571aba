"""How far the followers of what a broker leads are, in the names of Kafka's ReplicaManager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.families import Row, row_of, single


class InSyncFigures:
    """Adds up the partitions that a broker leads."""

    def __init__(self) -> None:
        self._under_replicated = 0
        self._under_minimum = 0
        self._at_minimum = 0
        self._without_spare = 0
        # By follower; ms.
        self._behind: Counter[int] = Counter()
        self._behind_ms: dict[int, float] = {}

    def add(self, leading: Leading) -> None:
        is_under_replicated = leading.is_under_replicated
        is_under_minimum, is_at_minimum = leading.is_under_min_in_sync, leading.is_at_min_in_sync
        self._under_minimum += is_under_minimum
        self._at_minimum += is_at_minimum
        if not is_under_replicated:
            return
        self._under_replicated += 1
        self._without_spare += is_under_minimum or is_at_minimum
        for node_id, behind_ms in leading.followers_behind():
            self._behind[node_id] += 1
            self._behind_ms[node_id] = max(behind_ms, self._behind_ms.get(node_id, 0.0))

    def add_single_replica(self) -> None:
        """Adds a partition without followers."""
        self._at_minimum += 1

    def rows(self) -> Iterator[Row]:
        prefix = "kafka_server_replicamanager_"
        yield single(f"{prefix}underreplicatedpartitions", self._under_replicated)
        yield single(f"{prefix}underminisrpartitioncount", self._under_minimum)
        yield single(f"{prefix}atminisrpartitioncount", self._at_minimum)
        yield single("strandline_partitions_without_spare", self._without_spare)
        yield row_of(
            "strandline_follower_behind_partitions",
            [Sample(count, (str(node_id),)) for node_id, count in sorted(self._behind.items())],
        )
        yield row_of(
            "strandline_follower_behind_seconds",
            [
                Sample(round(behind_ms / 1000, 1), (str(node_id),))
                for node_id, behind_ms in sorted(self._behind_ms.items())
            ],
        )

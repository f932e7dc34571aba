"""What group coordination wants to know of a broker's configuration."""

from __future__ import annotations

from typing import Protocol


class GroupConfiguration(Protocol):
    """The part of a broker's configuration that group coordination depends on."""

    @property
    def group_min_session_timeout_ms(self) -> int: ...

    @property
    def group_max_session_timeout_ms(self) -> int: ...

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...

    @property
    def group_max_size(self) -> int: ...

    @property
    def group_consumer_max_size(self) -> int: ...

    @property
    def group_consumer_assignors(self) -> tuple[str, ...]: ...

    @property
    def group_consumer_regex_refresh_interval_ms(self) -> int: ...

    @property
    def group_consumer_migration_policy(self) -> str: ...

    @property
    def offsets_topic_num_partitions(self) -> int: ...

    @property
    def offsets_topic_segment_bytes(self) -> int: ...

    @property
    def offsets_retention_minutes(self) -> int: ...

    @property
    def offsets_retention_check_interval_ms(self) -> int: ...

    @property
    def offset_metadata_max_bytes(self) -> int: ...

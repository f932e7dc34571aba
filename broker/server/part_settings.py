"""What the parts of the broker are told of its configuration.

Each part has settings of its own and knows no BrokerConfig; these functions translate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import of_listener
from strandline.broker.config.listeners import parse_connection_overrides
from strandline.broker.network.server import ServerLimits
from strandline.broker.quotas.cold_pace import PaceSettings
from strandline.broker.quotas.quotas import ConnectionRates
from strandline.storage.config.log_config import INT_MAX
from strandline.storage.local.cleaner.cleaner import CleanerSettings
from strandline.storage.tiering.policy.quota import QuotaLimits
from strandline.storage.tiering.policy.retry import RetryPolicy

if TYPE_CHECKING:
    from strandline.storage.tiering.partition.config import TieringConfig

T = TypeVar("T")


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """What the configuration says of compaction."""
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_bytes_per_s=config.log_cleaner_io_max_bytes_per_second,
    )


def pace_settings(config: BrokerConfig) -> PaceSettings:
    """What the configuration says of cold reads beside live traffic."""
    return PaceSettings(
        lateness_s_max=config.remote_fetch_yield_ms / 1000,
        floor_bytes_per_s=config.remote_fetch_yield_floor_bytes_per_second,
        full_floor_bytes_per_s=config.remote_fetch_yield_full_floor_bytes_per_second,
    )


def tiering_config(config: BrokerConfig) -> TieringConfig:
    """What the configuration says of the remote tier's work."""
    # A broker without a remote tier does without most of `storage/tiering`.
    from strandline.storage.tiering.partition.config import TieringConfig
    from strandline.storage.tiering.rewrite.scratch import SCRATCH_FOLDER

    return TieringConfig(
        scratch=config.log_dirs[0] / SCRATCH_FOLDER,
        task_interval_ms=config.remote_log_manager_task_interval_ms,
        workers=config.remote_log_manager_copier_thread_pool_size,
        copy_timeout_ms=config.remote_copy_timeout_ms,
        changes_interval_ms=config.remote_changes_interval_ms,
        delete_grace_ms=config.remote_delete_grace_ms,
        merge_target_bytes=config.remote_merge_target_bytes,
        compaction_key_bytes_max=config.log_cleaner_dedupe_buffer_size,
        orphan_grace_ms=config.remote_orphan_grace_ms,
        orphan_interval_ms=config.remote_orphan_check_interval_ms,
        retry=RetryPolicy(
            backoff_ms=config.remote_log_manager_task_retry_backoff_ms,
            backoff_ms_max=config.remote_log_manager_task_retry_backoff_max_ms,
            jitter=config.remote_log_manager_task_retry_jitter,
        ),
        copy_quota=QuotaLimits(
            bytes_per_second_max=config.remote_log_manager_copy_max_bytes_per_second,
            window_count=config.remote_log_manager_copy_quota_window_num,
            window_s=config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        fetch_quota=QuotaLimits(
            bytes_per_second_max=config.remote_log_manager_fetch_max_bytes_per_second,
            window_count=config.remote_log_manager_fetch_quota_window_num,
            window_s=config.remote_log_manager_fetch_quota_window_size_seconds,
        ),
        reads_max=config.remote_log_reader_threads + config.remote_log_reader_max_pending_tasks,
    )


def server_limits(config: BrokerConfig) -> ServerLimits:
    """What the configuration says of connections."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connections_max=config.max_connections,
        connections_by_listener_max=_limits_by_listener(config, "max.connections"),
        idle_ms_max=config.connections_max_idle_ms,
        connections_per_address_max=config.max_connections_per_ip,
        connections_by_address_max=parse_connection_overrides(
            config.max_connections_per_ip_overrides
        ),
    )


def connection_rates(config: BrokerConfig) -> ConnectionRates:
    """What the configuration says of how fast connections are accepted."""
    rate = config.max_connection_creation_rate
    return ConnectionRates(
        all_listeners=rate if rate < INT_MAX else None,
        by_listener=_limits_by_listener(config, "max.connection.creation.rate"),
    )


class Current(Generic[T]):
    """Settings of a part as they are in force, made anew only when the configuration was altered.

    They are asked for with each connection and request.
    """

    def __init__(self, current: Callable[[], BrokerConfig], make: Callable[[BrokerConfig], T]):
        self._current = current
        self._make = make
        self._made_of = current()
        self._made = make(self._made_of)

    def __call__(self) -> T:
        config = self._current()
        if config is not self._made_of:
            self._made_of = config
            self._made = self._make(config)
        return self._made


def _limits_by_listener(config: BrokerConfig, key: str) -> dict[str, int]:
    """The number under `key` of each listener that has one of its own, by its name."""
    texts = {one.name: of_listener(config.given, one.name, key) for one in config.listeners}
    return {name: int(text) for name, text in texts.items() if text is not None}

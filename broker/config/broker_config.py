"""Configuration of one broker: files and overrides in, one frozen value out.

    --set key=value   over   the properties file   over   the defaults of BROKER_CONFIGS

Loading reports everything that is wrong at once, each complaint with the line it comes from, what
would be accepted and, for an unknown key, the nearest known one. Nothing unknown is passed over:
a mistyped retention that silently does nothing deletes data, or keeps it.

Keys become fields: dots turn to underscores and a leading `strandline.` goes
(`strandline.remote.url` is `remote_url`). Defaults of topics have no fields; they are
`topic_defaults()`, keyed by topic property.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from strandline.broker.config.definition import MIB
from strandline.broker.config.foreign_keys import IGNORED, REFUSED, find_foreign
from strandline.broker.config.listener_keys import broker_config
from strandline.broker.config.listeners import (
    Listener,
    advertise,
    check_connections_per_address,
    check_protocols,
    parse_listeners,
    parse_protocol_map,
    without_controllers,
)
from strandline.broker.config.properties import Property, parse_override, read_properties
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.storage.config.log_config import LogConfig, nearest_name
from strandline.storage.errors import InvalidConfig

log = logging.getLogger(__name__)

_HTTP_URL = re.compile(r"https?://[^/\s]+(/\S*)?")
_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
# Bucket names by S3's rules; MiniStack and others accept no more either.
_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredKey:
    """A key that was accepted without having an effect, and why it has none."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What one broker runs with; every field is a key of BROKER_CONFIGS in snake case.

    `listeners` and `advertised_listeners` have the same names in the same order. `given` holds
    the texts of the keys that were set; `ignored` those that were set in vain.
    """

    node_id: int
    broker_rack: str | None
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]

    socket_request_max_bytes: int
    sasl_enabled_mechanisms: tuple[str, ...] | None
    connections_max_reauth_ms: int
    connection_failed_authentication_delay_ms: int
    sasl_server_max_receive_size: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connection_creation_rate: int
    max_connections_per_ip_overrides: str
    quota_window_num: int
    quota_window_size_seconds: int
    metrics_listener: str | None
    metrics_partitions_max: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int

    num_partitions: int
    default_replication_factor: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    max_request_partition_size_limit: int
    producer_id_expiration_ms: int

    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_regex_refresh_interval_ms: int
    group_consumer_migration_policy: str
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offset_metadata_max_bytes: int

    log_dirs: tuple[Path, ...]
    num_recovery_threads_per_data_dir: int
    log_retention_check_interval_ms: int
    log_initial_task_delay_ms: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_backoff_ms: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int

    remote_log_storage_system_enable: bool
    remote_url: str | None
    remote_s3_endpoint_url: str | None
    remote_s3_region: str | None
    remote_log_manager_task_interval_ms: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_expiration_thread_pool_size: int
    remote_log_reader_threads: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_reader_max_pending_tasks: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_task_retry_backoff_ms: int
    remote_log_manager_task_retry_backoff_max_ms: int
    remote_log_manager_task_retry_jitter: float
    remote_fetch_max_wait_ms: int
    remote_fetch_yield_ms: float
    remote_fetch_yield_floor_bytes_per_second: int
    remote_fetch_yield_full_floor_bytes_per_second: int
    remote_list_offsets_request_timeout_ms: int
    remote_chunk_bytes: int
    remote_cache_memory_bytes: int
    remote_cache_disk_bytes: int
    remote_cache_directory: Path
    remote_delete_grace_ms: int
    remote_copy_timeout_ms: int
    remote_merge_target_bytes: int
    remote_replica_poll_ms: int
    remote_replica_full_poll_ms: int
    remote_changes_interval_ms: int
    remote_orphan_grace_ms: int
    remote_orphan_check_interval_ms: int
    remote_groups_upload_ms: int
    remote_check_interval_ms: int

    given: Mapping[str, str]
    ignored: tuple[IgnoredKey, ...]

    @classmethod
    def load(
        cls, properties_file: Path | None = None, overrides: Sequence[str] = ()
    ) -> BrokerConfig:
        """Reads the file, then the `key=value` overrides. Raises InvalidConfig with every fault."""
        properties = list(read_properties(properties_file)) if properties_file else []
        properties += [parse_override(text) for text in overrides]
        config = _build(properties)
        for key in config.ignored:
            log.warning(
                "configuration key ignored",
                extra={"fields": {"key": key.key, "reason": key.reason}},
            )
        return config

    def topic_defaults(self) -> dict[str, str]:
        """What this broker sets for topics that do not say otherwise, by *topic* property."""
        return _topic_defaults(self.given)

    def with_bound_ports(self, ports: Mapping[str, int]) -> BrokerConfig:
        """The same with port 0 replaced by what the system gave, by listener name."""

        def bind(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
            return tuple(
                replace(listener, port=listener.port or ports[listener.name])
                for listener in listeners
            )

        return replace(
            self,
            listeners=bind(self.listeners),
            advertised_listeners=bind(self.advertised_listeners),
        )


def _build(properties: Sequence[Property]) -> BrokerConfig:
    given, ignored, faults = _sort_keys(properties)
    parsed: dict[str, object] = {}
    for name, definition in BROKER_CONFIGS.items():
        source = given.get(name)
        try:
            parsed[name] = definition.parse(source.value if source else definition.default)
        except InvalidConfig as error:
            faults.append(f"{source.origin}: {error}" if source else str(error))
    for name, source in given.items():
        scoped = None if name in BROKER_CONFIGS else broker_config(name)
        if scoped is not None:
            try:
                scoped.parse(source.value)
            except InvalidConfig as error:
                faults.append(f"{source.origin}: {error}")
    if faults:
        raise _refusal(faults)
    texts = {name: source.value for name, source in given.items() if broker_config(name)}
    fields = {
        BROKER_CONFIGS[name].field_name: value
        for name, value in parsed.items()
        if BROKER_CONFIGS[name].field_name in BrokerConfig.__dataclass_fields__
    }
    # Each of these looks at several keys, so none can say "line 3"; the keys are in its message.
    for derive in _DERIVATIONS:
        try:
            fields.update(derive(parsed, given))
        except InvalidConfig as error:
            faults.append(str(error))
    try:
        LogConfig.resolve_checked(_topic_defaults(texts)).check_as_defaults()
    except InvalidConfig as error:
        faults.append(f"defaults of topics: {error}")
    if faults:
        raise _refusal(faults)
    return BrokerConfig(
        **fields,  # type: ignore[arg-type]  # the table's types match the fields, tested
        given=MappingProxyType(texts),
        ignored=tuple(ignored),
    )


def _refusal(faults: Sequence[str]) -> InvalidConfig:
    if len(faults) == 1:
        return InvalidConfig(faults[0])
    return InvalidConfig("\n  ".join([f"{len(faults)} faults in the configuration:", *faults]))


def _sort_keys(
    properties: Sequence[Property],
) -> tuple[dict[str, Property], list[IgnoredKey], list[str]]:
    """The last value of each key, those without effect, and complaints about the others."""
    given: dict[str, Property] = {}
    for entry in properties:
        given[entry.key] = entry
    ignored: list[IgnoredKey] = []
    faults: list[str] = []
    for key, entry in given.items():
        if broker_config(key) is not None:
            continue
        refused = find_foreign(key, REFUSED)
        harmless = find_foreign(key, IGNORED)
        fault = _cluster_fault(entry)
        if refused is not None and entry.value.strip() not in refused.neutral:
            faults.append(f"{entry.origin}: {key} is not supported: {refused.reason}")
        elif fault is not None:
            faults.append(f"{entry.origin}: {fault}")
        elif refused is not None:
            ignored.append(IgnoredKey(key=key, reason="this value changes nothing"))
        elif harmless is not None:
            ignored.append(IgnoredKey(key=key, reason=harmless.reason))
        else:
            faults.append(f"{entry.origin}: unknown key {key!r}{nearest_name(key, BROKER_CONFIGS)}")
    return given, ignored, faults


def _cluster_fault(entry: Property) -> str | None:
    """Values of otherwise ignored keys that ask for a cluster, which one broker is not."""
    if entry.key == "process.roles":
        roles = [role.strip() for role in entry.value.split(",")]
        if "broker" not in roles:
            return f"process.roles={entry.value}: expected broker or broker,controller"
    if entry.key in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        voters = [voter for voter in entry.value.split(",") if voter.strip()]
        if len(voters) > 1:
            return f"{entry.key}: strandline does not join a quorum; expected at most one entry"
    return None


def _topic_defaults(given: Mapping[str, str]) -> dict[str, str]:
    defaults: dict[str, str] = {}
    # The table lists the synonyms of a property in order of precedence: ms, minutes, hours.
    for definition in BROKER_CONFIGS.values():
        topic_property = definition.topic_property
        text = given.get(definition.name, "").strip()
        if topic_property is None or not text or topic_property in defaults:
            continue
        # -1 means unlimited in every unit; it is no minus one hour.
        if definition.scale != 1 and int(text) > 0:
            text = str(int(text) * definition.scale)
        defaults[topic_property] = text
    return defaults


_Parsed = Mapping[str, object]
_Given = Mapping[str, Property]


def _derive_identity(parsed: _Parsed, given: _Given) -> dict[str, object]:
    broker_id = parsed["broker.id"]
    if broker_id is None or broker_id == -1:
        return {}
    if "node.id" in given and parsed["node.id"] != broker_id:
        raise InvalidConfig(
            f"broker.id={broker_id} and node.id={parsed['node.id']} name different brokers;"
            " expected one of them, or both the same"
        )
    return {"node_id": broker_id}


def _derive_listeners(parsed: _Parsed, given: _Given) -> dict[str, object]:
    names = given.get("controller.listener.names")
    controllers = {name.strip().upper() for name in names.value.split(",")} if names else set()
    listeners = without_controllers(
        parse_listeners("listeners", _texts(parsed["listeners"])), controllers
    )
    if not listeners:
        raise InvalidConfig("listeners: expected at least one NAME://host:port for clients")
    check_protocols(listeners, parse_protocol_map(_texts(parsed["listener.security.protocol.map"])))
    advertised_texts = _texts(parsed["advertised.listeners"])
    advertised = None
    if advertised_texts:
        advertised = without_controllers(
            parse_listeners("advertised.listeners", advertised_texts), controllers
        )
    return {"listeners": listeners, "advertised_listeners": advertise(listeners, advertised)}


def _derive_groups(parsed: _Parsed, _given: _Given) -> dict[str, object]:
    values = {}
    for what in ("session.timeout.ms", "heartbeat.interval.ms"):
        names = (
            f"group.consumer.min.{what}",
            f"group.consumer.{what}",
            f"group.consumer.max.{what}",
        )
        low, value, high = (_number(parsed[name]) for name in names)
        if not low <= value <= high:
            raise InvalidConfig(
                f"group.consumer.{what}={value}: expected {low} to {high}, the values of"
                f" {names[0]} and {names[2]}"
            )
        values[what] = value
    if values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
        raise InvalidConfig(
            "group.consumer.heartbeat.interval.ms: expected less than"
            f" group.consumer.session.timeout.ms={values['session.timeout.ms']}"
        )
    assignors = [
        _ASSIGNOR_CLASSES.get(name, name) for name in _texts(parsed["group.consumer.assignors"])
    ]
    unknown = [name for name in assignors if name not in _ASSIGNOR_CLASSES.values()]
    if unknown or not assignors:
        raise InvalidConfig(
            f"group.consumer.assignors={','.join(assignors)!r}: expected uniform, range or both"
        )
    return {"group_consumer_assignors": tuple(dict.fromkeys(assignors))}


def _number(parsed: object) -> int:
    """A parsed INT, for the type checker."""
    assert isinstance(parsed, int), parsed
    return parsed


def _derive_folders(parsed: _Parsed, given: _Given) -> dict[str, object]:
    names = _texts(parsed["log.dirs"])
    if not names and "log.dirs" in given:
        # A variable of a script that is not set, mostly: no reason to begin a log elsewhere.
        raise InvalidConfig("log.dirs='': expected at least one folder")
    names = names or (str(parsed["log.dir"]),)
    folders = tuple(Path(name) for name in names)
    for position, folder in enumerate(folders):
        if not folder.name:
            raise InvalidConfig(f"log.dirs={str(folder)!r}: expected a folder with a name")
        if folder in folders[:position]:
            raise InvalidConfig(f"log.dirs: the folder {folder} is named twice")
        for other in folders[:position]:
            if folder.resolve() == other.resolve():
                raise InvalidConfig(f"log.dirs: {folder} and {other} are one folder")
    cache = parsed["strandline.remote.cache.directory"]
    return {
        "log_dirs": folders,
        "remote_cache_directory": Path(str(cache)) if cache else folders[0] / "remote-cache",
    }


def _derive_tier(parsed: _Parsed, _given: _Given) -> dict[str, object]:
    url, endpoint = parsed["strandline.remote.url"], parsed["strandline.remote.s3.endpoint.url"]
    if url is None and parsed["remote.log.storage.system.enable"]:
        raise InvalidConfig(
            "remote.log.storage.system.enable=true needs strandline.remote.url:"
            " s3://bucket/prefix or file:///folder"
        )
    if url is not None and not _is_store_url(str(url)):
        raise InvalidConfig(
            f"strandline.remote.url={url!r}: expected s3://bucket/prefix or file:///folder"
            + (
                "; the name of a bucket has 3 to 63 small letters, digits, dots and hyphens"
                if str(url).startswith("s3://")
                else ""
            )
        )
    if endpoint is not None and not _HTTP_URL.fullmatch(str(endpoint)):
        raise InvalidConfig(
            f"strandline.remote.s3.endpoint.url={endpoint!r}: expected http://host:port"
            " or https://host"
        )
    return {}


def _check_cleaner(parsed: _Parsed, _given: _Given) -> dict[str, object]:
    threads, size = parsed["log.cleaner.threads"], parsed["log.cleaner.dedupe.buffer.size"]
    assert isinstance(threads, int), threads
    assert isinstance(size, int), size
    if size < threads * MIB:
        raise InvalidConfig(
            f"log.cleaner.dedupe.buffer.size={size}: expected at least 1 MiB for each of the"
            f" {threads} threads of log.cleaner.threads"
        )
    return {}


def _check_connections(parsed: _Parsed, _given: _Given) -> dict[str, object]:
    check_connections_per_address(
        _number(parsed["max.connections.per.ip"]), str(parsed["max.connections.per.ip.overrides"])
    )
    return {}


def _is_store_url(url: str) -> bool:
    return bool(_S3_URL.fullmatch(url)) or (
        url.startswith("file:///") and len(url) > len("file:///")
    )


def _texts(parsed: object) -> tuple[str, ...]:
    """A parsed LIST, for the type checker; unset is empty."""
    if parsed is None:
        return ()
    assert isinstance(parsed, tuple), parsed
    return parsed


# Each of these looks at several keys.
_DERIVATIONS = (
    _derive_identity,
    _derive_listeners,
    _derive_groups,
    _derive_folders,
    _derive_tier,
    _check_cleaner,
    _check_connections,
)

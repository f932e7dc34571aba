"""Loads the configuration of one broker: files and overrides in, one frozen value out.

    --set key=value   over   the properties file   over   the defaults of the sections

Loading reports all faults at once, each with the line it comes from, the accepted values and, for
an unknown key, the nearest known one. No unknown key is ignored: a mistyped retention that silently
does nothing deletes data, or keeps it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import broker_config, of_listener
from strandline.broker.config.listeners import (
    HTTPS,
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    advertise,
    check_protocols,
    parse_listeners,
    parse_protocol_map,
    without_controllers,
)
from strandline.broker.config.sasl_listeners import check_sasl
from strandline.broker.config.table import BROKER_CONFIGS, TopicDefaultKey
from strandline.broker.config.unsupported_keys import IGNORED, REFUSED, find_foreign
from strandline.storage.config.definition import with_values
from strandline.storage.config.log_config import LogConfig, nearest_name
from strandline.storage.config.properties import Property, parse_override, read_properties
from strandline.storage.errors import InvalidConfig
from strandline.storage.tiering.rewrite.scratch import SCRATCH_FOLDER
from strandline.storage.urls import check_no_password

log = logging.getLogger(__name__)

_HTTP_URL = re.compile(r"https?://[^/\s]+(/\S*)?")
# Bucket names by S3's rules; MiniStack and others accept no more either.
_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?")


def load_config(properties_file: Path | None = None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """Reads the file, then the `key=value` overrides. Raises InvalidConfig with every fault."""
    properties = list(read_properties(properties_file)) if properties_file else []
    given = [parse_override(text) for text in overrides]
    for key, places in (*_repeated(properties), *_repeated(given)):
        log.warning(
            "configuration key given twice, the last one counts",
            extra={"fields": {"key": key, "places": ", ".join(places)}},
        )
    config = _build([*properties, *given])
    for key, reason in config.ignored.items():
        log.warning("configuration key ignored", extra={"fields": {"key": key, "reason": reason}})
    return config


def warn_of_unused_archive(config: BrokerConfig) -> None:
    """Logs that a broker with the address of an archive archives nothing without its switch."""
    if config.archive.url is not None and not config.archive.is_enabled:
        log.warning(
            "strandline.remote.url has no effect without remote.log.storage.system.enable=true:"
            " nothing is archived",
            extra={"fields": {"url": config.archive.url}},
        )


def _repeated(properties: Sequence[Property]) -> Iterator[tuple[str, list[str]]]:
    """Yields the keys that are given more than once in one place, with all the places."""
    places: dict[str, list[str]] = {}
    for entry in properties:
        places.setdefault(entry.key, []).append(entry.origin)
    yield from ((key, origins) for key, origins in places.items() if len(origins) > 1)


def altered(config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
    """Returns `config` with these keys changed. Raises InvalidConfig."""
    if not properties:
        return config
    given = {**config.given, **properties}
    return _settled(with_values(config, _parsed(properties)), given)


def _parsed(properties: Mapping[str, str]) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for name, text in properties.items():
        definition = broker_config(name)
        assert definition is not None, name
        parsed[name] = definition.parse(text)
    return parsed


def _settled(config: BrokerConfig, given: Mapping[str, str]) -> BrokerConfig:
    """Fills in fields that depend on keys of other sections, or of single listeners."""
    by_listener = {
        key: {
            one.name: int(text)
            for one in config.listeners
            if (text := of_listener(given, one.name, key)) is not None
        }
        for key in ("max.connections", "max.connection.creation.rate")
    }
    reader = config.cold_reader
    return replace(
        config,
        network=replace(config.network, connections_by_listener_max=by_listener["max.connections"]),
        connection_rates=replace(
            config.connection_rates, by_listener=by_listener["max.connection.creation.rate"]
        ),
        topics=replace(
            config.topics,
            properties=_topic_defaults(given),
            tiering_enabled=config.archive.is_enabled,
        ),
        tiering=replace(
            config.tiering,
            scratch=config.logs.dirs[0] / SCRATCH_FOLDER,
            compaction_key_bytes_max=config.cleaner.dedupe_buffer_bytes,
            reads_max=reader.parallel_downloads_max + reader.waiting_reads_max,
        ),
        cold_reader=replace(
            reader, disk_directory=reader.disk_directory or config.logs.dirs[0] / "remote-cache"
        ),
        given=MappingProxyType(given),
    )


def _build(properties: Sequence[Property]) -> BrokerConfig:
    given, ignored, faults = _sort_keys(properties)
    parsed: dict[str, object] = {}
    for name, source in given.items():
        definition = broker_config(name)
        if definition is not None:
            try:
                parsed[name] = definition.parse(source.value)
            except InvalidConfig as error:
                faults.append(f"{source.origin}: {error}")
    if faults:
        raise _refusal(faults)
    config = with_values(BrokerConfig(ignored=ignored), parsed)
    texts = {name: source.value for name, source in given.items() if name in parsed}
    # Each check reads several keys, so none can say "line 3"; the keys are in its message.
    for check in _CHECKS:
        try:
            config = check(config, given) or config
        except InvalidConfig as error:
            faults.append(str(error))
    config = _settled(config, texts)
    if not faults:
        try:
            check_sasl(config)
        except InvalidConfig as error:
            faults.append(str(error))
    try:
        LogConfig.resolve_checked(config.topics.properties).check_as_defaults()
    except InvalidConfig as error:
        faults.append(f"defaults of topics: {error}")
    if faults:
        raise _refusal(faults)
    return config


def _refusal(faults: Sequence[str]) -> InvalidConfig:
    if len(faults) == 1:
        return InvalidConfig(faults[0])
    return InvalidConfig("\n  ".join([f"{len(faults)} faults in the configuration:", *faults]))


def _sort_keys(
    properties: Sequence[Property],
) -> tuple[dict[str, Property], dict[str, str], list[str]]:
    """Returns the last value of each key, the keys without effect, and the faults of the others."""
    given = {entry.key: entry for entry in properties}
    ignored: dict[str, str] = {}
    faults: list[str] = []
    for key, entry in given.items():
        if broker_config(key) is not None:
            continue
        refused = find_foreign(key, REFUSED)
        harmless = find_foreign(key, IGNORED)
        if refused is not None and entry.value.strip() not in refused.neutral:
            faults.append(f"{entry.origin}: {key} is not supported: {refused.reason}")
        elif refused is not None:
            ignored[key] = "this value changes nothing"
        elif harmless is not None:
            ignored[key] = harmless.reason
        else:
            faults.append(f"{entry.origin}: unknown key {key!r}{nearest_name(key, BROKER_CONFIGS)}")
    return given, ignored, faults


def _topic_defaults(given: Mapping[str, str]) -> dict[str, str]:
    defaults: dict[str, str] = {}
    # The table lists the synonyms of a property in order of precedence: ms, minutes, hours.
    for definition in BROKER_CONFIGS.values():
        text = given.get(definition.name, "").strip()
        if not text or not isinstance(definition, TopicDefaultKey):
            continue
        # -1 means unlimited in every unit; it is not minus one hour.
        if definition.scale != 1 and int(text) > 0:
            text = str(int(text) * definition.scale)
        defaults.setdefault(definition.topic_property, text)
    return defaults


_Given = Mapping[str, Property]


def _check_identity(config: BrokerConfig, given: _Given) -> None:
    identity = config.identity
    if "node.id" in given and identity.own_id != identity.node_id:
        raise InvalidConfig(
            f"broker.id={identity.older_id} and node.id={identity.own_id} name different brokers;"
            " expected one of them, or both the same"
        )


def _check_replicas(config: BrokerConfig, _given: _Given) -> None:
    membership, factor = config.membership, config.topics.replication_factor
    if membership.is_controller or membership.has_controllers:
        return
    count = membership.brokers
    if factor > max(1, count):
        can = (
            f"{count} brokers can hold only {count}"
            if count > 1
            else "a lone broker can hold only one"
        )
        raise InvalidConfig(f"default.replication.factor={factor}: {can}")


def _with_listeners(config: BrokerConfig, given: _Given) -> BrokerConfig:
    controllers = {name.upper() for name in config.peers.controller_listeners}
    written = config.identity
    if config.membership.is_controller:
        return _with_controller_listeners(config, controllers, given)
    listeners = without_controllers(parse_listeners("listeners", written.listeners), controllers)
    if not listeners:
        raise InvalidConfig("listeners: expected at least one NAME://host:port for clients")
    check_protocols(listeners, parse_protocol_map(written.protocols))
    metrics = config.metrics.listener
    if metrics is not None and metrics.name == HTTPS in (one.name for one in listeners):
        raise InvalidConfig(
            "listeners: HTTPS is the name of strandline.metrics.listener, whose keys are"
            " listener.name.https.ssl.*; expected another one"
        )
    advertised = None
    if written.advertised_listeners:
        advertised = without_controllers(
            parse_listeners("advertised.listeners", written.advertised_listeners), controllers
        )
    return replace(
        config, listeners=listeners, advertised_listeners=advertise(listeners, advertised)
    )


def _with_controller_listeners(
    config: BrokerConfig, names: Collection[str], given: _Given
) -> BrokerConfig:
    """A controller listens for brokers, and no client meets it.

    As in Kafka its listeners are PLAINTEXT if nothing says what they are: neither the map of
    protocols, nor the name of any listener.
    """
    written = config.identity
    listeners = parse_listeners("listeners", written.listeners)
    secured = {SSL, SASL_PLAINTEXT, SASL_SSL}
    if "listener.security.protocol.map" not in given and secured.isdisjoint(
        {*names, *(one.name for one in listeners)}
    ):
        written = replace(
            written, protocols=(*written.protocols, *(f"{name}:{PLAINTEXT}" for name in names))
        )
    if without_controllers(listeners, names):
        raise InvalidConfig(
            "process.roles=controller: expected listeners that controller.listener.names names,"
            f" but found {', '.join(map(str, without_controllers(listeners, names)))}"
        )
    check_protocols(listeners, parse_protocol_map(written.protocols))
    advertised = None
    if written.advertised_listeners:
        advertised = parse_listeners("advertised.listeners", written.advertised_listeners)
    return replace(
        config,
        identity=written,
        listeners=listeners,
        advertised_listeners=advertise(listeners, advertised),
    )


def _check_folders(config: BrokerConfig, given: _Given) -> None:
    if not config.logs.several_dirs and "log.dirs" in given:
        # Usually an unset variable of a script: the broker must not create a log elsewhere.
        raise InvalidConfig("log.dirs='': expected at least one folder")
    folders = config.logs.dirs
    for position, folder in enumerate(folders):
        if not folder.name:
            raise InvalidConfig(f"log.dirs={str(folder)!r}: expected a folder with a name")
        if folder in folders[:position]:
            raise InvalidConfig(f"log.dirs: the folder {folder} is named twice")
        for other in folders[:position]:
            if folder.resolve() == other.resolve():
                raise InvalidConfig(f"log.dirs: {folder} and {other} are one folder")


def _check_archive(config: BrokerConfig, _given: _Given) -> None:
    url, endpoint_url = config.archive.url, config.archive.endpoint_url
    check_no_password("strandline.remote.url", url or "")
    check_no_password("strandline.remote.s3.endpoint.url", endpoint_url or "")
    if url is None and config.archive.is_enabled:
        raise InvalidConfig(
            "remote.log.storage.system.enable=true needs strandline.remote.url:"
            " s3://bucket/prefix or file:///folder"
        )
    if url is not None and not _is_store_url(url):
        raise InvalidConfig(
            f"strandline.remote.url={url!r}: expected s3://bucket/prefix or file:///folder"
            + (
                "; the name of a bucket has 3 to 63 small letters, digits, dots and hyphens"
                if url.startswith("s3://")
                else ""
            )
        )
    if endpoint_url is not None and not _HTTP_URL.fullmatch(endpoint_url):
        raise InvalidConfig(
            f"strandline.remote.s3.endpoint.url={endpoint_url!r}: expected http://host:port"
            " or https://host"
        )


def _is_store_url(url: str) -> bool:
    return bool(_S3_URL.fullmatch(url)) or (
        url.startswith("file:///") and len(url) > len("file:///")
    )


# Each raises InvalidConfig, and may return the configuration with its result.
_CHECKS: Sequence[Callable[[BrokerConfig, _Given], BrokerConfig | None]] = (
    _check_identity,
    lambda config, _: config.membership.check(),
    _check_replicas,
    _with_listeners,
    lambda config, _: config.groups.consumer.check(),
    _check_folders,
    _check_archive,
    lambda config, _: config.cleaner.check(),
    lambda config, _: config.network.check(),
    lambda config, _: config.authorizer.check(),
)

"""The configuration in force: the static values of the start, and dynamic changes since.

    set for this broker   over   set for every broker   over   command line, file   over   default

The first two are in the metadata image (AlterConfigs and IncrementalAlterConfigs of a BROKER
resource); `follow` applies them. Readers of an alterable key read `current` each time; others may
keep the value.

`check_broker_change` runs before a change is stored, and refuses changes that cannot be applied. A
stored change that cannot be applied (to a key that another release let be altered) is skipped with
a warning: a broker that does not start is worse than one with a default.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar, cast

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage, TopicImage
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import (
    PREFIX,
    RENEWABLE,
    broker_config,
)
from strandline.broker.config.listeners import Listener
from strandline.broker.config.loading import altered
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.config.unsupported_keys import IGNORED, find_foreign
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import LogConfig, nearest_name
from strandline.storage.errors import InvalidConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

# Thread pools whose size can be altered.
POOL_SIZES: Mapping[str, Callable[[BrokerConfig], int]] = {
    "remote.log.manager.copier.thread.pool.size": lambda config: config.tiering.workers,
    "remote.log.manager.expiration.thread.pool.size": (
        lambda config: config.tiering.expiration_threads
    ),
    "remote.log.reader.threads": lambda config: config.cold_reader.parallel_downloads_max,
}

# Of all listeners together, or of one. A file may close a listener with 0; a dynamic change may not
# (Kafka's ConnectionQuotas.ListenerConnectionQuota).
_LIMIT_OF_CONNECTIONS = re.compile(r"(listener\.name\..+\.)?max\.connections")

_NOTHING: Mapping[str, str] = MappingProxyType({})


class RunningConfig:
    """Owner of the configuration in force. Used on the event loop only."""

    def __init__(self, static: BrokerConfig) -> None:
        self._static = static
        self._own: Mapping[str, str] = _NOTHING
        self._cluster_wide: Mapping[str, str] = _NOTHING
        self._current = static
        # What was made of it, by what made it; see `once`.
        self._made: dict[Callable[[RunningConfig], object], object] = {}

    @property
    def current(self) -> BrokerConfig:
        return self._current

    @property
    def static(self) -> BrokerConfig:
        """The configuration that the broker was started with."""
        return self._static

    @property
    def own(self) -> Mapping[str, str]:
        """The dynamic keys of this broker alone."""
        return self._own

    @property
    def cluster_wide(self) -> Mapping[str, str]:
        """The cluster-wide dynamic keys."""
        return self._cluster_wide

    def bind(self, ports: Mapping[str, int]) -> None:
        """Sets the ports that the system assigned."""
        self._static = self._static.with_bound_ports(ports)
        self._apply()

    def advertised(self, listener: str) -> Listener:
        """Returns the address that clients of a listener get: that of the same listener."""
        found = self._current.advertised_listeners
        return next((one for one in found if one.name == listener), found[0])

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Applies the stored keys of this broker and of all brokers, if they were altered."""
        if not delta.broker_properties:
            return
        node_id, stored = self._static.node_id, image.broker_properties
        if node_id not in delta.broker_properties and None not in delta.broker_properties:
            return
        self._own = _usable(stored.get(node_id, _NOTHING))
        self._cluster_wide = _usable(stored.get(None, _NOTHING))
        before = self._current
        self._apply()
        log.info("configuration altered", extra={"fields": _difference(before, self._current)})

    def with_own(self, own: Mapping[str, str]) -> BrokerConfig:
        """Returns what is in force with these dynamic keys of the broker. Raises InvalidConfig."""
        return altered(self._static, {**self._cluster_wide, **own})

    def once(self, make: Callable[[RunningConfig], T]) -> T:
        """Returns what `make` makes of the configuration: anew only if it was altered since."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("T", self._made[make])

    def _apply(self) -> None:
        self._current = self.with_own(self._own)
        self._made.clear()

    def __repr__(self) -> str:
        return f"<RunningConfig own={dict(self._own)} cluster_wide={dict(self._cluster_wide)}>"


def _usable(stored: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the stored keys that this release can apply."""
    usable: dict[str, str] = {}
    for name, text in stored.items():
        try:
            _check_one(name, text)
        except Refusal as refusal:
            log.warning(
                "stored configuration not applied",
                extra={
                    "fields": {"key": name, "value": _shown(name, text), "reason": refusal.message}
                },
            )
        else:
            usable[name] = text
    return MappingProxyType(usable)


def _shown(name: str, text: str) -> str:
    """Other brokers store passwords too, also under keys that are unknown here."""
    definition = broker_config(name)
    is_secret = definition is None or definition.type is ValueType.PASSWORD
    return "(hidden)" if is_secret else text


def _difference(before: BrokerConfig, after: BrokerConfig) -> dict[str, str]:
    names = before.given.keys() | after.given.keys()
    return {
        name: after.given.get(name, "the default")
        for name in sorted(names)
        if before.given.get(name) != after.given.get(name)
    }


# --- before a change is stored ---------------------------------------------------------------


def check_broker_change(
    static: BrokerConfig, image: MetadataImage, node_id: int | None, properties: Mapping[str, str]
) -> None:
    """Raises Refusal unless a broker can run with `properties` set; `node_id` None means all.

    The code is INVALID_REQUEST where Kafka uses it, also for a bad value (KAFKA-13609).
    """
    for name, text in properties.items():
        _check_one(name, text)
        if node_id is None and name.startswith(PREFIX) and name.endswith(RENEWABLE):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "Cannot update these configs at default cluster level, broker id must be"
                f" specified: {name}",
            )
    stored = _stored_for(static.node_id, image.broker_properties)
    after = _stored_for(static.node_id, {**image.broker_properties, node_id: properties})
    try:
        wanted = altered(
            static, {name: text for name, text in after.items() if broker_config(name)}
        )
        before = altered(static, _usable(stored))
        _check_pool_sizes(before, wanted)
        wanted.cleaner.check()
        wanted.network.check()
        defaults = wanted.topics.properties
        # Parsed as topic properties, so that they are also checked against each other.
        LogConfig.resolve_checked(defaults).check_as_defaults()
    except InvalidConfig as error:
        raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from None
    defaults_before = before.topics.properties
    topics = image.topics.values() if defaults != defaults_before else ()
    # Most of very many topics have the same properties as another one.
    for topic in {frozenset(topic.properties.items()): topic for topic in topics}.values():
        fault = _fault_of(topic, defaults)
        # A topic that contradicts itself already does not prevent the change, which may repair it.
        if fault is not None and _fault_of(topic, defaults_before) is None:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"topic {topic.name} could not run with it: {fault}"
            )


def _fault_of(topic: TopicImage, defaults: Mapping[str, str]) -> InvalidConfig | None:
    """Returns the fault of a topic's properties with these defaults, if any."""
    try:
        LogConfig.resolve_checked(topic.properties, defaults)
    except InvalidConfig as error:
        return error
    return None


def _stored_for(node_id: int, stored: Mapping[int | None, Mapping[str, str]]) -> Mapping[str, str]:
    return {**stored.get(None, _NOTHING), **stored.get(node_id, _NOTHING)}


def _check_pool_sizes(before: BrokerConfig, after: BrokerConfig) -> None:
    """As in Kafka's DynamicThreadPool, one change at most doubles a pool, or halves it.

    Raises InvalidConfig.
    """
    for name, size_of in POOL_SIZES.items():
        size, wanted = size_of(before), size_of(after)
        if not size // 2 <= wanted <= size * 2:
            raise InvalidConfig(
                f"{name}={wanted}: must be at least half and at most double the current {size}"
            )


def _check_one(name: str, text: str) -> None:
    definition = broker_config(name)
    if definition is None:
        foreign = find_foreign(name, IGNORED)
        if foreign is not None:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} has no effect here: {foreign.reason}")
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"unknown key {name!r}{nearest_name(name, BROKER_CONFIGS)}"
        )
    if not definition.dynamic:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: {name}. Change the file or --set, and"
            " restart.",
        )
    try:
        value = definition.parse(text)
    except InvalidConfig as error:
        raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from None
    if value == 0 and _LIMIT_OF_CONNECTIONS.fullmatch(name):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{name}=0: must be at least 1, or nobody could connect to take it back",
        )

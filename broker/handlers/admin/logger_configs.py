"""The levels of this broker's loggers, seen and set while it runs (KIP-412).

DescribeConfigs and IncrementalAlterConfigs of BROKER_LOGGER, whose name is the broker's id:

    name     as the lines of the log show it (`broker.coordination.group`), a package of such
             (`storage.tiering`), or `root`: everything of ours
    value    TRACE  DEBUG  INFO  WARN  ERROR  FATAL

A name whose level is deleted takes that of the package above it; `root` always has one. A module
that nobody needed yet has no logger. Nothing is kept over a restart, as in Kafka, and the process
that downloads cold records keeps the level it was started with.

Where we differ from Kafka: `root` leaves the loggers of libraries alone. Those of the S3 client
write credentials of a session into what they log of a request.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from strandline.broker.cluster.metadata.decisions import Refusal
from strandline.broker.protocol.messages.describe_configs import ConfigSource, DescribeConfigsEntry
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.errors import ErrorCode

ROOT = "root"
_PACKAGE = "strandline"
# Kafka's names in order; nothing of ours is logged below DEBUG.
_LEVELS: Mapping[str, int] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = tuple(_LEVELS)
_NUMBERS = tuple(_LEVELS.values())


def logger_levels() -> dict[str, str]:
    """The level in force of every logger of this process that is ours, sorted by name."""
    prefix = f"{_PACKAGE}."
    # Packages whose own logger nobody asked for are in it too, and asking makes them one.
    known = sorted(name for name in logging.root.manager.loggerDict if name.startswith(prefix))
    names = {name.removeprefix(prefix): name for name in known}
    return {
        shown: _NAMES[min(bisect_left(_NUMBERS, _level_of(name)), len(_NAMES) - 1)]
        for shown, name in {ROOT: _PACKAGE, **names}.items()
    }


def _level_of(name: str) -> int:
    return logging.getLogger(name).getEffectiveLevel()


def logger_changes(
    operations: Sequence[IncrementalConfig], known: Mapping[str, str]
) -> dict[str, str | None]:
    """The level that each named logger shall have, None for the one above. Raises Refusal."""
    if len({operation.name for operation in operations}) < len(operations):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return {operation.name: _wanted(operation, known) for operation in operations}


def _wanted(operation: IncrementalConfig, known: Mapping[str, str]) -> str | None:
    name, level = operation.name, operation.value
    match operation.config_operation:
        case ConfigOperation.SET:
            if level is None:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
            if level not in _LEVELS:
                raise Refusal(
                    ErrorCode.INVALID_CONFIG,
                    f"{name}={level!r}: expected one of {', '.join(_LEVELS)}",
                )
        case ConfigOperation.DELETE:
            if name == ROOT:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"{ROOT} always has a level")
            level = None
        case _:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} is no list: its level can be set")
    if name not in known:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"no logger named {name!r} at present")
    return level


def set_levels(changes: Mapping[str, str | None]) -> None:
    """Carries out what `logger_changes` found."""
    for name, level in changes.items():
        logger = logging.getLogger(_PACKAGE if name == ROOT else f"{_PACKAGE}.{name}")
        logger.setLevel(logging.NOTSET if level is None else _LEVELS[level])


def describe_loggers(*, documented: bool) -> list[DescribeConfigsEntry]:
    """A row for every logger; `documented` as asked for, though there is nothing to say."""
    return [
        DescribeConfigsEntry(
            name=name,
            value=level,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            documentation="" if documented else None,
        )
        for name, level in logger_levels().items()
    ]

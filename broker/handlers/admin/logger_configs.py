"""Reads and sets the levels of this broker's loggers at run time (KIP-412).

DescribeConfigs and IncrementalAlterConfigs of BROKER_LOGGER, whose name is the broker's id:

    name     as in the log's lines (`broker.coordination.group`), a package of these
             (`storage.tiering`), or `root`: all loggers of strandline
    value    TRACE  DEBUG  INFO  WARN  ERROR  FATAL

A logger whose level is deleted inherits that of its package; `root` always has one. A module that
is not imported yet has no logger. Levels do not survive a restart, as in Kafka, and the process
that downloads cold records keeps the level it was started with.

Where we differ from Kafka: `root` leaves the loggers of libraries alone. The S3 client's loggers
write session credentials into their request logs.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.protocol.messages.describe_configs import ConfigSource, DescribeConfigsEntry
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.errors import ErrorCode

ROOT = "root"
_PACKAGE = "strandline"
# Kafka's names in order; strandline logs nothing below DEBUG.
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
    """Returns the effective level of every logger of strandline, sorted by name."""
    prefix = f"{_PACKAGE}."
    # The list includes packages without a logger of their own; getLogger creates it.
    known = sorted(name for name in logging.root.manager.loggerDict if name.startswith(prefix))
    names = {name.removeprefix(prefix): name for name in known}
    levels = {
        shown: logging.getLogger(name).getEffectiveLevel()
        for shown, name in {ROOT: _PACKAGE, **names}.items()
    }
    return {
        shown: _NAMES[min(bisect_left(_NUMBERS, level), len(_NAMES) - 1)]
        for shown, level in levels.items()
    }


def logger_changes(
    operations: Sequence[IncrementalConfig], known: Mapping[str, str]
) -> dict[str, str | None]:
    """Returns the new level of each named logger, None to inherit. Raises Refusal."""
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
    """Applies the result of `logger_changes`."""
    for name, level in changes.items():
        logger = logging.getLogger(_PACKAGE if name == ROOT else f"{_PACKAGE}.{name}")
        logger.setLevel(logging.NOTSET if level is None else _LEVELS[level])


def describe_loggers(*, documented: bool) -> list[DescribeConfigsEntry]:
    """Returns a row for every logger; `documented` adds an empty documentation."""
    return [
        DescribeConfigsEntry(
            name=name,
            value=level,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            documentation="" if documented else None,
        )
        for name, level in logger_levels().items()
    ]

"""The raw options of a query: texts by name, each parsed to its type.

Names are case-insensitive, as in Spark; the error for an unknown name suggests the nearest one.
`options` has their meaning. Pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import TypeVar

from strandline.storage.errors import InvalidConfig

T = TypeVar("T")

OPTION_NAMES = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "columns",
    "includeHeaders",
    "valueFormat",
    "valueSchema",
    "valueErrors",
    "valueDescriptors",
    "valueMessage",
    "valueSubject",
    "schemaRegistry.url",
    "schemaRegistry.userPassword",
    "failOnDataLoss",
    "includeOpenSegment",
    "isolationLevel",
    "minPartitions",
    "maxRecordsPerPartition",
    "splitBytes",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "scanReport",
    "engine",
    "urlExpiry",
    "s3.endpoint.url",
    "s3.region",
    "s3.ca.file",
    "s3.access.key",
    "s3.secret",
    "s3.token",
    "s3.anonymous",
    "s3.profile",
    "s3.requester.pays",
)
# Options of Spark's Kafka source that concern brokers.
_OF_BROKERS = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
# Common wrong names that are not similar to the right ones.
_MEANT = {"topic": "subscribe", "topics": "subscribe", "url": "path", "bucket": "path"}
# Options that Spark's catalog adds for CREATE TABLE.
_CATALOGS = frozenset({"owner", "provider"})
# Options whose values come from environment variables that may not be set.
_MAY_BE_EMPTY = ("s3.", "schemaRegistry.userPassword")
_NAME_BY_LOWER = {name.lower(): name for name in OPTION_NAMES}


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Python values as the texts that Spark would pass. None means not given.

    So `{"s3.token": os.environ.get("AWS_SESSION_TOKEN")}` is right with and without a token.
    """
    return {name: option_text(value) for name, value in options.items() if value is not None}


def option_text(value: object) -> str:
    """JSON for a mapping, `true` and `false`; numpy's and pandas' numbers are numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, default=index) if isinstance(value, Mapping) else str(value)


class GivenOptions:
    """The raw options; names are case-insensitive."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if _CATALOGS.issubset(name.lower() for name in options):
            raise InvalidConfig(
                "a table of a catalog (CREATE TABLE) cannot be of this source: Spark would read it"
                " without its options; CREATE TEMPORARY VIEW takes the same, and register_views"
                " makes views in each session"
            )
        self._texts: dict[str, str] = {}
        for name, text in options.items():
            known = _NAME_BY_LOWER.get(name.lower())
            if known is None:
                raise _unknown_option(name)
            if self._texts.get(name.lower(), text) != text:
                raise InvalidConfig(f"option {known} is given twice, with different values")
            if not text.strip() and not known.startswith(_MAY_BE_EMPTY):
                raise InvalidConfig(f"option {known} is empty: give it a value, or leave it out")
            self._texts[name.lower()] = text

    def text(self, name: str) -> str | None:
        assert name.lower() in _NAME_BY_LOWER, name
        text = self._texts.get(name.lower())
        return text.strip() if text is not None and text.strip() else None

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.one_of(name, {"true": True, "false": False}, str(default).lower())

    def one_of(self, name: str, choices: Mapping[str, T], default: str) -> T:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise InvalidConfig(
                f"option {name} is {self.text(name)!r}, it may be {' or '.join(choices)}"
            )
        return choices[text]

    def number(self, name: str, *, default: int, at_least: int, at_most: int = 2**62) -> int:
        """A whole number in [at_least, at_most]. Raises InvalidConfig; `default` is not checked."""
        text = self.text(name)
        if text is None:
            return default
        number = integer(name, text)
        if number < at_least:
            raise InvalidConfig(f"option {name} is {number}, it must be at least {at_least}")
        if number > at_most:
            raise InvalidConfig(f"option {name} is {number}, it must be at most {at_most}")
        return number


def _unknown_option(name: str) -> InvalidConfig:
    if name.lower() == "kafka.isolation.level":
        return InvalidConfig(
            f"option {name} has no meaning here, the lake reads no broker: isolationLevel is ours,"
            " and read_committed without it"
        )
    of_brokers = {one.lower(): one for one in _OF_BROKERS}
    if name.lower().startswith("kafka.") or name.lower() in of_brokers:
        # Spark passes names in lower case.
        name = of_brokers.get(name.lower(), name)
        return InvalidConfig(
            f"option {name} has no meaning here: the lake reads the bucket of option path,"
            " no broker"
        )
    meant = _MEANT.get(name.lower()) or nearest(name, OPTION_NAMES)
    return InvalidConfig(f"option {name} is unknown; the nearest is {meant}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the most similar known name, ignoring case."""
    by_lower = {one.lower(): one for one in names}
    return by_lower[difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)[0]]


def named_values(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Splits the NAME=VALUE of a command line's `flag`. Raises InvalidConfig."""
    named = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidConfig(f"{flag} {text!r} must be NAME=VALUE")
        named[name.strip()] = value
    return named


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(name: str, text: str) -> int:
    """Durations as Spark writes them: `30s`, `15m`, `500ms`; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    unit = found[2] if found else "?"
    if found is None or (unit or "ms") not in _UNITS_MS:
        raise InvalidConfig(f"option {name} is {text!r}, expected a duration such as 15m or 30s")
    return int(found[1]) * _UNITS_MS[unit or "ms"]


def json_object(name: str, text: str, example: str) -> dict[str, object]:
    """Returns an option's JSON object. Raises InvalidConfig, with `example`, for anything else."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"option {name} is {text!r}, expected JSON like {example}") from error
    if not isinstance(parsed, dict):
        raise InvalidConfig(f"option {name} is {text!r}, expected JSON like {example}")
    return parsed


def integer(name: str, text: str) -> int:
    """Parses a 64-bit whole number. Raises InvalidConfig."""
    if re.fullmatch(r"[+-]?[0-9]{1,19}", text) is None or not is_long(int(text)):
        raise InvalidConfig(f"option {name} is {text[:100]!r}, expected a whole number of 64 bits")
    return int(text)


def is_long(number: object) -> bool:
    """Returns whether it is a whole number of 64 bits, as offsets and times are."""
    return type(number) is int and -(2**63) <= number < 2**63

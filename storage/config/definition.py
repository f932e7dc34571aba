"""Sections of configuration and their keys; each key is defined once and completely.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class RetryPolicy:
        backoff_ms: int = key("retry.backoff.ms", LONG, 500, "Ms before the first...", minimum=1)

A section is a frozen dataclass, passed to the part that it configures. Each field made by `key` is
a key of the configuration: loading, DescribeConfigs and
docs/reference/configuration.md read its definition from the field (`keys_of`). Fields without
`key` are computed when the section is created.
Sections may hold sections (`section`). Numbers and lists are parsed by Kafka's own rules; the
error names the key and the values it accepts.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

from strandline.storage.errors import InvalidConfig

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

MIB = 1024 * 1024
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class ValueType(Enum):
    """Value types, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, PASSWORD = tuple(ValueType)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One key: `minimum`/`maximum` are inclusive, `choices` apply to each list element.

    `nullable` ones may be empty, which means unset. `dynamic` ones can be altered while the broker
    runs. `synonyms` of a topic property are the broker keys that set its default.
    """

    name: str
    type: ValueType
    default: str
    doc: str
    synonyms: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    dynamic: bool = False
    # Parses one value into the field's type. May raise InvalidConfig.
    convert: Callable[[Any], object] | None = None

    def parse(self, text: str) -> object:
        """Returns the typed value, None for an empty nullable key.

        Raises InvalidConfig, naming the key and its accepted values.
        """
        if self.nullable and not text.strip():
            return None
        value = parse_config_value(self, text)
        return value if self.convert is None else self.convert(value)


def key(
    name: str,
    config_type: ValueType,
    default: object,
    doc: str,
    *synonyms: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    convert: Callable[[Any], object] | None = None,
) -> Any:  # As dataclasses.field: the field has the type.
    """Returns the field of a section for this key. A default of None: nullable and unset."""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    definition = ConfigDef(
        name=name,
        type=config_type,
        default="" if default is None else text,
        doc=doc,
        synonyms=synonyms,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        nullable=default is None,
        dynamic=dynamic,
        convert=convert,
    )
    value: Any = definition.parse(definition.default)
    if isinstance(value, Mapping):
        # Nobody changes it, but dataclasses take none for a default.
        return field(default_factory=lambda: value, metadata={_KEY: definition})
    return field(default=value, metadata={_KEY: definition})


def section(made: Callable[[], object], heading: str = "", **words: str) -> Any:
    """Returns a field with the section `made()`, which the documentation shows under `heading`.

    `{word}` in the names and docs of its keys is filled in.
    """
    return field(default_factory=made, metadata={_SECTION: made, _HEADING: heading, _WORDS: words})


_KEY, _SECTION, _HEADING, _WORDS = "key", "section", "heading", "words"
_NO_WORDS: Mapping[str, str] = {}


def keys_of(config: Any, words: Mapping[str, str] = _NO_WORDS) -> Iterator[ConfigDef]:
    """The keys of a section (or its class) and of nested sections, in the order of the fields."""
    for declared in fields(config):
        if _SECTION in declared.metadata:
            yield from keys_of(declared.metadata[_SECTION], declared.metadata[_WORDS])
        elif _KEY in declared.metadata:
            yield _definition(declared, words)


def keys_by_heading(config: Any) -> dict[str, list[ConfigDef]]:
    """Returns the keys of the nested sections, by their headings in the documentation, in order."""
    found: dict[str, list[ConfigDef]] = {}
    for declared in fields(config):
        if _SECTION in declared.metadata:
            keys = keys_of(declared.metadata[_SECTION], declared.metadata[_WORDS])
            found.setdefault(declared.metadata[_HEADING], []).extend(keys)
    return found


SectionT = TypeVar("SectionT")


def with_values(
    config: SectionT, values: Mapping[str, object], words: Mapping[str, str] = _NO_WORDS
) -> SectionT:
    """A copy of a section with these values, by the names of their keys; the others stay."""
    changes: dict[str, object] = {}
    for declared in fields(config):  # type: ignore[arg-type]  # a dataclass
        if _SECTION in declared.metadata:
            before = getattr(config, declared.name)
            after = with_values(before, values, declared.metadata[_WORDS])
            if after is not before:
                changes[declared.name] = after
        elif _KEY in declared.metadata:
            name = declared.metadata[_KEY].name
            name = name.format(**words) if words else name
            if name in values:
                changes[declared.name] = values[name]
    return replace(config, **changes) if changes else config  # type: ignore[type-var]  # as above


def _definition(declared: Field[Any], words: Mapping[str, str]) -> ConfigDef:
    found: ConfigDef = declared.metadata[_KEY]
    if not words:
        return found
    return replace(found, name=found.name.format(**words), doc=found.doc.format(**words))


def parse_config_value(definition: ConfigDef, text: str) -> object:
    """Parses `text` by Kafka's rules for the type. Raises InvalidConfig."""
    text = text.strip()
    value: object
    match definition.type:
        case ValueType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidConfig(f"{definition.name}={text!r}: expected true or false")
            return text.lower() == "true"
        case ValueType.INT | ValueType.LONG | ValueType.SHORT:
            value = _parse_integer(definition, text)
        case ValueType.DOUBLE:
            value = _parse_number(definition, text)
        case ValueType.LIST:
            elements = _elements(text)
            for element in elements:
                _check_choice(definition, element)
            return elements
        case _:
            _check_choice(definition, text)
            return text
    if definition.minimum is not None and value < definition.minimum:
        raise InvalidConfig(f"{definition.name}={text}: must be at least {definition.minimum}")
    if definition.maximum is not None and value > definition.maximum:
        raise InvalidConfig(f"{definition.name}={text}: must be at most {definition.maximum}")
    return value


def _elements(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# More digits than any bound has, and few enough that int() is quick on hostile text.
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_INTEGER_BOUNDS = {
    ValueType.SHORT: 2**15 - 1,
    ValueType.INT: INT_MAX,
    ValueType.LONG: LONG_MAX,
}


def _parse_integer(definition: ConfigDef, text: str) -> int:
    # int() alone would also accept 1_000 and digits of other scripts, which Kafka refuses.
    if not _INTEGER.fullmatch(text):
        raise InvalidConfig(f"{definition.name}={text!r}: expected a whole number")
    value = int(text)
    bound = _INTEGER_BOUNDS[definition.type]
    if not -bound - 1 <= value <= bound:
        raise InvalidConfig(
            f"{definition.name}={text}: out of the range of {definition.type.name.lower()}"
        )
    return value


def _parse_number(definition: ConfigDef, text: str) -> float:
    # Like int(), float() alone would accept more than Kafka does.
    is_plain = text.isascii() and "_" not in text
    try:
        value = float(text) if is_plain else math.nan
    except ValueError:
        value = math.nan
    # No bound holds against nan: it is neither below nor above anything.
    if math.isnan(value):
        raise InvalidConfig(f"{definition.name}={text!r}: expected a number")
    return value


def _check_choice(definition: ConfigDef, text: str) -> None:
    if definition.choices and text not in definition.choices:
        raise InvalidConfig(
            f"{definition.name}={text!r}: expected one of {', '.join(definition.choices)}"
        )


# Java prints plain decimals in this range, and an exponent outside.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7


def as_read(config_type: ValueType, text: str) -> str:
    """Returns a valid text as Kafka prints its parsed value: TRUE is true, 007 is 7.

    As ConfigDef.convertToString.
    """
    match config_type:
        case ValueType.BOOLEAN:
            return text.strip().lower()
        case ValueType.INT | ValueType.LONG | ValueType.SHORT:
            return str(int(text))
        case ValueType.DOUBLE:
            return _java_double(float(text))
        case ValueType.LIST:
            return ",".join(_elements(text))
        case _:
            return text


def _java_double(value: float) -> str:
    """As Double.toString."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_TO:
        return repr(value)
    digits = repr(value).partition("e")[0].replace(".", "").strip("-0")
    mantissa, _, exponent = f"{value:.{max(len(digits) - 1, 1)}e}".partition("e")
    return f"{mantissa}E{int(exponent)}"


def nearest_name(name: str, known: Mapping[str, object]) -> str:
    """`; did you mean x?` if a known name is close, ignoring case, else an empty text."""
    in_lower_case = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {in_lower_case[close[0]]}?" if close else ""

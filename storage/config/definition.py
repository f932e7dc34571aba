"""One configuration property: its type, default and bounds, and how text becomes a value of it.

Kafka's own rules decide what is a number or a list; the error names the property and what it takes.
Tables of properties are made of this: topic_properties.py here, config_keys/ of the broker.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from strandline.storage.errors import InvalidConfig

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class ConfigType(Enum):
    """Types as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One property: `minimum`/`maximum` are inclusive, `choices` apply to each list element."""

    name: str
    type: ConfigType
    default: str
    doc: str
    synonyms: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> object:
        """The typed value. Raises InvalidConfig, naming the property and what it accepts."""
        return parse_config_value(self, text)


def parse_config_value(definition: ConfigDef, text: str) -> object:
    """Parses `text` by Kafka's rules for the type. Raises InvalidConfig."""
    text = text.strip()
    value: object
    match definition.type:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidConfig(f"{definition.name}={text!r}: expected true or false")
            return text.lower() == "true"
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            value = _parse_integer(definition, text)
        case ConfigType.DOUBLE:
            value = _parse_number(definition, text)
        case ConfigType.LIST:
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
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
}


def _parse_integer(definition: ConfigDef, text: str) -> int:
    # int() alone would also take 1_000 and digits of other scripts, which Kafka refuses.
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
    # Like int(), float() alone would take more than Kafka does.
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


# Java writes numbers out between these, and with an exponent elsewhere.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7


def as_read(config_type: ConfigType, text: str) -> str:
    """A checked text as Kafka writes the value that it reads in it: TRUE is true, 007 is 7.

    As ConfigDef.convertToString.
    """
    match config_type:
        case ConfigType.BOOLEAN:
            return text.strip().lower()
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            return str(int(text))
        case ConfigType.DOUBLE:
            return _java_double(float(text))
        case ConfigType.LIST:
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
    """`; did you mean x?` if a known name is close, in whichever case, else nothing."""
    import difflib  # Only for who made a mistake.

    in_lower_case = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {in_lower_case[close[0]]}?" if close else ""

"""docs/reference/configuration.md, from the tables that the broker reads; see doc_pages.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from strandline.broker.config.table import BROKER_SECTIONS, TOPIC_DEFAULTS, TopicDefaultKey
from strandline.broker.config.unsupported_keys import IGNORED, REFUSED, UnsupportedKeys
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import INT_MAX, LONG_MAX, TOPIC_CONFIGS, ConfigDef

_INTRODUCTION = """\
# Configuration

<!-- Made by `make docs`. Do not edit. -->

For operators. This page has every property of the broker and of topics; [run](../how-to/run.md)
says how to set and alter them.

`strandline serve --config server.properties --set name=value` reads a Java properties file (in
UTF-8) and then the overrides, which win. Kafka's names have Kafka's meaning; properties that begin
with `strandline.` are ours. A mistyped name or a value out of bounds stops the start. The error
names the line, the accepted values, and the nearest known name.

Defaults are Kafka's with these exceptions. `node.id` is 1. `log.dir` is a folder under the working
directory, because the system empties Kafka's `/tmp` at boot. `listeners` is this machine alone,
because by default the broker asks no client for a password. `sasl.enabled.mechanisms` is unset,
because the broker does not serve GSSAPI.

The broker reads its properties at the start. You can alter those marked *dynamic* while it runs,
for one broker or for all (`kafka-configs --entity-type brokers`). That value overrides the file,
also after restarts. You can alter topic properties at any time.
"""

# Behind the name in the heading of a topic's property: the broker has some of the same names.
TOPIC_MARK = "(topic)"

_TOPIC_INTRODUCTION = """\
## Topic properties

Set them when you create a topic, or alter them later. A topic that does not set a property gets the
broker's default for it.
"""

_TOPIC_DEFAULTS_INTRODUCTION = """\
## Defaults of topics

Each sets the default of a topic property. If several set the same one, the finest unit wins: `.ms`
over `.minutes` over `.hours`.
"""

_IGNORED_INTRODUCTION = """\
## Kafka's properties that have no effect

The broker accepts these properties, so that you can use a configuration made for Kafka, and logs
that it ignores them. A star stands for all properties that begin so and are in no table above.
"""

_REFUSED_INTRODUCTION = """\
## Kafka's properties that are refused

If the broker ignored these properties, it would break a promise of the configuration: the start
ends with the reason. The broker accepts a value without effect, as in the last column. A star
stands for all properties that begin so and are in no table above.
"""


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for heading, keys in BROKER_SECTIONS.items():
        parts += [f"## {heading}\n", *map(_broker_property, keys)]
    parts += [_TOPIC_DEFAULTS_INTRODUCTION, *map(_topic_default, TOPIC_DEFAULTS)]
    parts += [_TOPIC_INTRODUCTION, *map(_topic_property, TOPIC_CONFIGS.values())]
    parts += [_IGNORED_INTRODUCTION, _ignored_table(), _REFUSED_INTRODUCTION, _refused_table()]
    return "\n".join(parts)


def _broker_property(definition: ConfigDef) -> str:
    return _property(_code(definition.name), definition, definition.doc)


def _topic_default(definition: TopicDefaultKey) -> str:
    of = definition.topic_property
    link = f"[{_code(of)}](#{_anchor(of)}-topic)"
    return _property(_code(definition.name), definition, f"Default of the topic property {link}.")


def _topic_property(definition: ConfigDef) -> str:
    defaults = ", ".join(f"[{_code(name)}](#{_anchor(name)})" for name in definition.synonyms)
    meaning = f"{definition.doc} Default by {defaults}." if defaults else definition.doc
    return _property(f"{_code(definition.name)} {TOPIC_MARK}", definition, meaning)


def _property(heading: str, definition: ConfigDef, meaning: str) -> str:
    facts = [f"default {_default(definition)}", definition.type.name.lower(), _accepted(definition)]
    if definition.dynamic:
        facts.append("*dynamic*")
    return f"### {heading}\n\n{', '.join(facts)}\n\n{_prose(meaning)}\n"


def _prose(text: str) -> str:
    """A name in angle brackets becomes code; Markdown would take it for a tag."""
    return re.sub(r"[\w.]*<\w+>(?:[\w.<>]*[\w>])?", lambda match: _code(match[0]), text)


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _ignored_table() -> str:
    return _table(
        ("name", "why it changes nothing"),
        [(_code(_shown(entry)), _prose(entry.reason)) for entry in _sorted(IGNORED)],
    )


def _refused_table() -> str:
    return _table(
        ("name", "why", "accepted"),
        [
            (
                _code(_shown(entry)),
                _prose(entry.reason),
                ", ".join(_value(text) for text in entry.neutral),
            )
            for entry in _sorted(REFUSED)
        ],
    )


def _default(definition: ConfigDef) -> str:
    if definition.nullable and not definition.default:
        return "unset"
    return _value(definition.default)


def _accepted(definition: ConfigDef) -> str:
    if definition.choices:
        return ", ".join(map(_code, definition.choices))
    if definition.type is ValueType.BOOLEAN:
        return "`true`, `false`"
    if definition.minimum is None and definition.maximum is None:
        return "any"
    if definition.minimum == definition.maximum:
        return f"{definition.minimum}"
    if definition.maximum is None:
        return f"≥ {definition.minimum}"
    if definition.minimum is None:
        return f"≤ {definition.maximum}"
    return f"{definition.minimum} to {definition.maximum}"


def _value(text: str) -> str:
    match text:
        case "":
            return "empty"
        case _ if text == str(LONG_MAX):
            return "2⁶³ − 1"
        case _ if text == str(INT_MAX):
            return "2³¹ − 1"
        case _:
            return _code(text)


def _shown(entry: UnsupportedKeys) -> str:
    return f"{entry.pattern}*" if entry.pattern.endswith(".") else entry.pattern


def _sorted(entries: Iterable[UnsupportedKeys]) -> list[UnsupportedKeys]:
    return sorted(entries, key=lambda entry: entry.pattern)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    # A bar inside a cell would end it.
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )

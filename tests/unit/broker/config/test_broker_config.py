"""The sections of a configuration, and values that follow from others."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from tests.unit.broker.config.loaded import load


def sections(config: object) -> Iterator[object]:
    yield config
    for declared in fields(config):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(value := getattr(config, declared.name)):
            yield from sections(value)


def test_every_field_of_a_section_holds_what_its_type_says() -> None:
    given = ("log.dirs=/a", "broker.rack=r", "strandline.metrics.listener=http://h:1")
    for config in (load(), load(*given)):
        for section in sections(config):
            for name, hint in typing.get_type_hints(type(section)).items():
                either = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
                kinds = tuple(typing.get_origin(one) or one for one in either)
                value = getattr(section, name)
                if value is None or isinstance(value, bool | int | float | str):
                    assert type(value) in kinds, (section, name)
                else:
                    assert isinstance(value, kinds), (section, name)


def test_ports_that_the_system_chose_replace_zero_everywhere() -> None:
    config = load("listeners=PLAINTEXT://127.0.0.1:0").with_bound_ports({"PLAINTEXT": 40001})
    assert config.listeners[0].port == config.advertised_listeners[0].port == 40001
    fixed = load("advertised.listeners=PLAINTEXT://h:1").with_bound_ports({"PLAINTEXT": 5})
    assert (fixed.listeners[0].port, fixed.advertised_listeners[0].port) == (9092, 1)

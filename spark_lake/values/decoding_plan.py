"""Plan of a query's value decoding: the driver resolves the schema once.

Executors get a `ValuePlan`, which holds the schemas as text; each makes its own decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strandline.spark_lake.options.selection_options import Assign, Selection, Subscribe
from strandline.spark_lake.options.value_options import ValueErrors, ValueFormat, ValueOptions
from strandline.spark_lake.values.decoders.avro_values import AvroValues, schema_of_registry
from strandline.spark_lake.values.decoders.decoder import TextValues, ValueDecoder
from strandline.spark_lake.values.decoders.json_values import JsonValues
from strandline.spark_lake.values.decoders.protobuf_values import (
    ProtobufValues,
    descriptors_of_file,
    first_message,
    read_descriptors,
)
from strandline.spark_lake.values.schema.ddl import parse_columns
from strandline.spark_lake.values.schema.references import referred
from strandline.spark_lake.values.schema.registry import RegisteredSchema, Registry
from strandline.storage.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePlan:
    """A value format with its schema; `schema` is columns for JSON, Avro's JSON for Avro."""

    format: ValueFormat
    errors: ValueErrors
    schema: str = ""
    descriptors: bytes = b""
    message: str = ""
    registry: Registry | None = None

    def decoder(self) -> ValueDecoder:
        """Returns a new decoder. Raises InvalidConfig for a schema that cannot be used."""
        match self.format:
            case ValueFormat.STRING:
                return TextValues()
            case ValueFormat.JSON:
                kind = parse_columns(self.schema)
                return JsonValues(kind, framed=self.registry is not None)
            case ValueFormat.AVRO:
                return AvroValues(self.schema, self.registry)
            case ValueFormat.PROTOBUF:
                return ProtobufValues(self.descriptors, self.message, self.registry)
            case ValueFormat.RAW:
                raise AssertionError(self)

    @property
    def type(self) -> Any:
        """The `pyarrow.DataType` of the column `value`."""
        return self.decoder().type


def plan_values(options: ValueOptions, selection: Selection) -> ValuePlan | None:
    """The plan of these options; None for raw values. Asks the registry if they give no schema.

    Raises InvalidConfig, or what `Registry.latest` raises.
    """
    if options.format is ValueFormat.RAW:
        return None
    registry = (
        Registry(url=options.registry_url, auth=options.registry_auth)
        if options.registry_url
        else None
    )
    plan = ValuePlan(format=options.format, errors=options.errors, registry=registry)
    match options.format:
        case ValueFormat.JSON:
            if options.schema is None:
                raise InvalidConfig(
                    "option valueSchema is missing: valueFormat=json needs the columns, such as"
                    " 'origin STRING, dep_time INT'"
                )
            return _checked(plan, schema=options.schema)
        case ValueFormat.AVRO:
            if options.schema is not None:
                return _checked(plan, schema=options.schema)
            asked, found = _registered(registry, options, selection, serialized=False)
            return _checked(plan, schema=schema_of_registry(asked, found))
        case ValueFormat.PROTOBUF:
            if options.descriptors is not None:
                descriptors = read_descriptors(options.descriptors)
                if options.message is None:
                    raise InvalidConfig(
                        "option valueMessage is missing: the full name of the message, such as"
                        " shop.Order"
                    )
                return _checked(plan, descriptors=descriptors, message=options.message)
            asked, found = _registered(registry, options, selection, serialized=True)
            imported = referred(asked, found, serialized=True)
            descriptors = descriptors_of_file(
                found.text, imported=[(name, one.text) for name, one in imported]
            )
            message = options.message or first_message(descriptors)
            return _checked(plan, descriptors=descriptors, message=message)
        case _:
            return plan


def _checked(plan: ValuePlan, **schema: Any) -> ValuePlan:
    made = replace(plan, **schema)
    made.decoder()  # a wrong schema is refused here, not by a task
    return made


def _registered(
    registry: Registry | None, options: ValueOptions, selection: Selection, *, serialized: bool
) -> tuple[Registry, RegisteredSchema]:
    kind = options.format.name
    if registry is None:
        needed = "valueSchema" if options.format is ValueFormat.AVRO else "valueDescriptors"
        raise InvalidConfig(
            f"valueFormat={options.format.value} needs option {needed} or schemaRegistry.url"
        )
    found = registry.latest(options.subject or _subject(selection), serialized=serialized)
    if found.kind.upper() != kind:
        raise InvalidConfig(
            f"option valueFormat is {options.format.value}, the registry has {found.kind.lower()}"
        )
    return registry, found


def _subject(selection: Selection) -> str:
    """The subject of the only topic, by Confluent's default naming. Raises InvalidConfig."""
    match selection:
        case Subscribe():
            topics = list(selection.topics)
        case Assign():
            topics = list(selection.partitions)
        case _:
            topics = []
    if len(topics) != 1:
        raise InvalidConfig(
            "option valueSubject is missing: with several topics the schema is in no one's subject"
        )
    return f"{topics[0]}-value"

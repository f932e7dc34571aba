"""The field tables of kafka-python and kio, and ours, brought to one form to be compared.

    row = path in Kafka's names | type | nullable | tag | default where it is seen on the wire

Order matters and is kept; tagged fields come last, by tag.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import re
import typing
import uuid
import warnings
from typing import Any

from kio.static.constants import EntityType

from strandline.broker.protocol.codec import codec, source
from strandline.broker.protocol.schema.api import CONTROLLER_SPECS, EVERY_SPEC, ApiKey
from strandline.broker.protocol.schema.schema import ArrayOf, Message, Struct, StructOf, WireType
from tests.unit.broker.protocol.message_values import every_message, is_known_to_libraries, is_own

with warnings.catch_warnings():
    # kafka-python reads its definitions in a way that Python is going to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl
    from kafka.protocol.broker_version_data import BrokerVersionData

# Where our attribute is not Kafka's name in snake case: names chosen for handlers to read.
OUR_NAMES = {
    ("ProduceRequest", "topics"): "topic_data",
    ("ProduceTopic", "partitions"): "partition_data",
    ("ProduceResponse", "topics"): "responses",
    ("ProduceResponseTopic", "partitions"): "partition_responses",
    ("FetchTopic", "name"): "topic",
    ("ForgottenTopic", "name"): "topic",
    ("FetchRequest", "forgotten_topics"): "forgotten_topics_data",
    ("FetchResponse", "topics"): "responses",
    ("FetchResponseTopic", "name"): "topic",
    ("FetchResponsePartition", "index"): "partition_index",
    ("DescribedQuota", "quotas"): "values",
    # Kafka's own name since 4.4.
    ("TxnOffsetCommitRequest", "generation_id_or_member_epoch"): "generation_id",
    **{
        ("AddPartitionsToTxnRequest", name): f"v3_and_below_{name}"
        for name in ("transactional_id", "producer_id", "producer_epoch", "topics")
    },
    ("AddPartitionsToTxnResponse", "results_by_topic"): "results_by_topic_v3_and_below",
}

# Where our type is another one of the same bytes: pieces of a snapshot outlive their frame.
OUR_KINDS = {("FetchSnapshotPartitionResult", "unaligned_records"): "records"}

# kafka-python does not speak the group protocol of KIP-848, nor with controllers, and knows no
# delegation tokens: for these kio is the only oracle.
UNKNOWN_TO_KAFKA_PYTHON = {
    *CONTROLLER_SPECS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.UNREGISTER_BROKER,
}


@dataclasses.dataclass(frozen=True)
class Row:
    path: str
    kind: str
    nullable: bool
    tag: int | None


# kafka-python renames and retypes the operations of most responses before it compiles them.
KAFKA_PYTHON_OPERATIONS = "authorized_operations"


def kafka_name(cls: type[Struct], name: str) -> str:
    return OUR_NAMES.get((cls.__name__, name), name)


# --- ours ------------------------------------------------------------------------------------


def our_rows(cls: type[Message], version: int) -> list[Row]:
    return _our_rows(cls, version, cls.spec.is_flexible(version), "")


def with_names_of_kafka_python(rows: list[Row]) -> list[Row]:
    return [
        dataclasses.replace(
            row, path=re.sub(r"\b(topic|cluster)_(?=authorized_operations$)", "", row.path)
        )
        for row in rows
    ]


def _our_rows(cls: type[Struct], version: int, flexible: bool, prefix: str) -> list[Row]:
    rows: list[Row] = []
    fields = source.wire_fields(cls, version, flexible=flexible)
    fields += source.tagged_fields(cls, version, flexible=flexible)
    for field in fields:
        if is_own(field):
            continue
        path = prefix + kafka_name(cls, field.name)
        tag = field.tag if flexible else None
        nullable = field.is_nullable(version) or field.kind.name == "records"
        kind = OUR_KINDS.get((cls.__name__, field.name), _our_kind(field.kind))
        rows.append(Row(path, kind, nullable, tag))
        inner = field.kind.element if isinstance(field.kind, ArrayOf) else field.kind
        if isinstance(inner, StructOf):
            rows += _our_rows(inner.struct, version, flexible, path + ".")
    return rows


def _our_kind(kind: WireType[object]) -> str:
    if isinstance(kind, ArrayOf):
        return "[]" + _our_kind(kind.element)
    return "struct" if isinstance(kind, StructOf) else kind.name


# --- kafka-python ----------------------------------------------------------------------------


def messages_of_kafka_python() -> list[tuple[type[Message], int]]:
    return [
        (cls, version)
        for cls, version in every_message()
        if cls.spec.key not in UNKNOWN_TO_KAFKA_PYTHON and is_known_to_libraries(cls, version)
    ]


def kafka_python_class(cls: type[Message]) -> Any:
    for module in (
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.consumer,
        kafka.protocol.admin,
        kafka.protocol.sasl,
    ):
        if hasattr(module, cls.__name__):
            return getattr(module, cls.__name__)
    raise LookupError(cls.__name__)


def ranges_of_a_real_broker(release: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """What a broker of that Kafka release answered to ApiVersions, by API key."""
    ranges = BrokerVersionData(release).api_versions
    return {int(key): (lowest, highest) for key, (lowest, highest) in ranges.items()}


def kafka_python_rows(cls: type[Message], version: int) -> list[Row]:
    json = kafka_python_class(cls).json
    return _json_rows(json["fields"], version, cls.spec.is_flexible(version), "")


def _json_rows(
    fields: list[dict[str, Any]], version: int, flexible: bool, prefix: str
) -> list[Row]:
    def tag_of(field: dict[str, Any]) -> int | None:
        return field["tag"] if "tag" in field and flexible else None

    rows: list[Row] = []
    kinds = {"bitfield": "int32"}
    here = [field for field in fields if _has_version(field["versions"], version)]
    here.sort(key=lambda field: -1 if tag_of(field) is None else tag_of(field))
    for field in here:
        path = prefix + kafka_python_name(field)
        many = "[]" if field["type"].startswith("[]") else ""
        inner = field["type"].removeprefix("[]")
        kind = many + ("struct" if inner[0].isupper() else kinds.get(inner, inner))
        nullable = _has_version(field.get("nullableVersions", ""), version)
        rows.append(Row(path, kind, nullable, tag_of(field)))
        if "fields" in field:
            rows += _json_rows(field["fields"], version, flexible, path + ".")
    return rows


def kafka_python_default(cls: type[Message], path: str) -> object:
    """The default that the definition states, or that its type implies."""
    fields = kafka_python_class(cls).json["fields"]
    for part in path.split("."):
        field = next(field for field in fields if kafka_python_name(field) == part)
        fields = field.get("fields", [])
    if "default" in field:
        text = str(field["default"]).lower()
        if text in ("null", "true", "false"):
            return {"null": None, "true": True, "false": False}[text]
        return text if field["type"] == "string" else int(text, 0)
    zero = {"string": "", "bool": False, "uuid": uuid.UUID(int=0)}
    return zero.get(field["type"], () if field["type"].startswith("[]") else 0)


def kafka_python_name(field: dict[str, Any]) -> str:
    name = snake_case(field["name"])
    return name if field["type"] != "bitfield" else KAFKA_PYTHON_OPERATIONS


def _has_version(versions: str, version: int) -> bool:
    if not versions or versions == "none":
        return False
    first, _, last = versions.partition("-")
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    return int(first) <= version <= int(last or first)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# --- kio -------------------------------------------------------------------------------------


def kio_class(cls: type[Message], version: int) -> Any:
    key = EVERY_SPEC[cls.spec.key].key
    direction = "request" if cls is codec.request_class(key) else "response"
    return getattr(
        importlib.import_module(f"kio.schema.{key.name.lower()}.v{version}.{direction}"),
        cls.__name__,
    )


def kio_rows(cls: type[Message], version: int) -> list[Row]:
    return _kio_rows(kio_class(cls, version), "")


def _kio_rows(entity: Any, prefix: str) -> list[Row]:
    hints = typing.get_type_hints(entity)
    rows: list[Row] = []
    for field in kio_fields(entity):
        many, hint, nullable = _kio_shape(hints[field.name])
        is_struct = hasattr(hint, "__type__") and hint.__type__ is EntityType.nested
        name, kind = _kio_name_and_kind(field, is_struct)
        # kio shows the zero id and the time -1 as None, but neither is nullable on the wire.
        nullable = nullable and (many != "" or kind not in ("uuid", "int64"))
        path = prefix + name
        rows.append(Row(path, many + kind, nullable, field.metadata.get("tag")))
        if is_struct:
            rows += _kio_rows(hint, path + ".")
    return rows


def kio_fields(entity: Any) -> list[Any]:
    """In wire order, tagged ones last."""
    return sorted(dataclasses.fields(entity), key=lambda field: field.metadata.get("tag", -1))


def _kio_shape(hint: Any) -> tuple[str, Any, bool]:
    nullable = False
    if type(None) in typing.get_args(hint):
        nullable = True
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if typing.get_origin(hint) is tuple:
        return "[]", typing.get_args(hint)[0], nullable
    return "", hint, nullable


_KIO_KINDS = {
    "error_code": ("int16", ""),
    "timedelta_i32": ("int32", "_ms"),
    "timedelta_i64": ("int64", "_ms"),
    "datetime_i64": ("int64", "_ms"),
}


def _kio_name_and_kind(field: Any, is_struct: bool) -> tuple[str, str]:
    name = field.name.removesuffix("_")
    if is_struct:
        return name, "struct"
    kafka_type = field.metadata["kafka_type"]
    kind, suffix = _KIO_KINDS.get(kafka_type, (kafka_type, ""))
    return name + suffix, kind


def plain(value: object) -> object:
    """A value of kio's or ours as the number, text or bytes that it is on the wire."""
    if isinstance(value, dt.timedelta):
        return round(value / dt.timedelta(milliseconds=1))
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, memoryview):
        return bytes(value)
    return value

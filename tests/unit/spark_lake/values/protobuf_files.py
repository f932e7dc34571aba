"""Files of Protobuf as a registry answers them."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

LATEST = "/subjects/t-value/versions/latest?format=serialized"
BY_ID = "/schemas/ids/{}?format=serialized"


def shop() -> descriptor_pb2.FileDescriptorProto:
    """shop.Order with shop.Order.Line inside, and shop.Refund, all with one number."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for message, name in (
        (order, "amount"),
        (order.nested_type.add(name="Note"), "page"),
        (order.nested_type.add(name="Line"), "count"),
        (file.message_type.add(name="Refund"), "back"),
    ):
        field = descriptor_pb2.FieldDescriptorProto
        message.field.add(name=name, number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    return file


def answer_of(file: descriptor_pb2.FileDescriptorProto) -> dict[str, str]:
    content = base64.b64encode(file.SerializeToString()).decode()
    return {"schemaType": "PROTOBUF", "schema": content}


# --- Protobuf --------------------------------------------------------------------------------


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """shop.Order, with most kinds of fields."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="GIFT", number=1)
    order = file.message_type.add(name="Order")
    line = file.message_type.add(name="Line")
    field = descriptor_pb2.FieldDescriptorProto
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message, repeated = field.TYPE_MESSAGE, field.LABEL_REPEATED
    for number, (name, type_, label, type_name) in enumerate(
        [
            ("id", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("kind", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Kind"),
            ("first", message, field.LABEL_OPTIONAL, ".shop.Line"),
            ("lines", message, repeated, ".shop.Line"),
            ("tags", message, repeated, ".shop.Order.TagsEntry"),
            ("at", message, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("raw", field.TYPE_BYTES, field.LABEL_OPTIONAL, ""),
        ],
        start=1,
    ):
        order.field.add(
            name=name, number=number, type=type_, label=label, type_name=type_name or None
        )
    return file


def order_message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(order_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()

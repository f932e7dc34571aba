"""A value of Protobuf, as its producer wrote it."""

from __future__ import annotations

import pytest

from tests.unit.spark_lake.values.protobuf_files import order_message
from tests.unit.spark_lake.values.valued_archive import MOMENT


@pytest.fixture
def order() -> bytes:
    message = order_message()
    message.id = 2**63 + 5
    message.kind = 1
    message.lines.add(sku="a")
    message.lines.add(sku="b")
    message.tags["x"] = 3
    message.at.FromDatetime(MOMENT.replace(tzinfo=None))
    message.raw = b"\x00\xff"
    return bytes(message.SerializeToString())

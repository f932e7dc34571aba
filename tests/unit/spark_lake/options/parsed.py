"""Options as a query parses them, or the refusal of them."""

from __future__ import annotations

import pytest

from strandline.spark_lake.options.options import LakeOptions
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TopicPartition

REQUIRED = {"path": "s3://bucket/prefix", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(**options: str) -> LakeOptions:
    return LakeOptions.parse({**REQUIRED, **options})


def refused(options: dict[str, str]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        LakeOptions.parse(options)
    return str(caught.value)

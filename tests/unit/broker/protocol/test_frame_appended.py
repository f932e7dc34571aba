"""The hand-written answer of Produce is the generated one, byte for byte."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import frame_response
from strandline.broker.protocol.messages.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from strandline.broker.protocol.produce import frame_appended
from strandline.broker.protocol.schema.api import SPECS, ApiKey


@pytest.mark.parametrize("version", list(SPECS[ApiKey.PRODUCE].supported))
@pytest.mark.parametrize("name", ["t", "x" * 126, "x" * 127, "x" * 249])
def test_the_quick_answer_equals_the_generated_one(version: int, name: str) -> None:
    topic_id = uuid.uuid4() if version >= 13 else None
    topic = ProduceTopic(name="" if topic_id else name, topic_id=topic_id, partitions=())
    quick = frame_appended(version, 77, topic, 3, 2**40, -1, 12)
    if quick is None:
        assert version < 9 or len(name) > 126
        return
    response = ProduceResponse(
        topics=[
            ProduceResponseTopic(
                name=topic.name,
                topic_id=topic_id,
                partitions=[
                    ProduceResponsePartition(
                        index=3, base_offset=2**40, log_append_time_ms=-1, log_start_offset=12
                    )
                ],
            )
        ]
    )
    body = codec.encode_response(response, version)
    assert quick == codec.join(frame_response(ApiKey.PRODUCE, version, 77, body))

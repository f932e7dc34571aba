"""DeleteTopics: deletes topics.

v1  throttle time    v4  flexible    v5  error message    v6  by id, in `topics`
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class DeleteTopicState(Struct):
    """One topic to delete: by name, or by id if the name is None."""

    name: str | None = wire.string(nullable="6+", default=None)
    topic_id: uuid.UUID = wire.uuid_(default=wire.ZERO_UUID)


class DeleteTopicsRequest(Request, api=ApiKey.DELETE_TOPICS):
    """The topics to delete: in `topic_names` up to v5, in `topics` from v6 on."""

    topics: Sequence[DeleteTopicState] = wire.array(DeleteTopicState, "6+", default=())
    topic_names: Sequence[str] = wire.array(wire.string, "0-5", default=())
    timeout_ms: int = wire.int32()


class DeletableTopicResult(Struct):
    name: str | None = wire.string(nullable="6+")
    topic_id: uuid.UUID = wire.uuid_("6+", default=wire.ZERO_UUID)
    error_code: int = wire.int16(default=0)
    error_message: str | None = wire.string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Response, api=ApiKey.DELETE_TOPICS):
    throttle_time_ms: int = wire.int32("1+", default=0)
    responses: Sequence[DeletableTopicResult] = wire.array(DeletableTopicResult)

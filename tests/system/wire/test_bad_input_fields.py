"""Well-formed requests in which one field is as odd as its type allows: each is answered.

Random bytes seldom make a text of the longest length that is still a text, or a number at the end
of its range, in the middle of a request that is right otherwise. Here every field of every API
takes all of these in turn, in the oldest and the newest version that has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.schema.schema import ArrayOf, Field, Fixed, Request, Struct
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, assert_serves, create_topic
from tests.system.fuzz.frames import TOPIC, requests

pytestmark = pytest.mark.slow

# The longest that there are, and what a name must not be.
TEXTS = ("", "x" * 249, "x" * 250, "y" * 32767, "ü" * 16383, "\0", "../x", "-1", "NaN", "*")
UUIDS = (uuid.UUID(int=0), uuid.UUID(int=1), uuid.UUID(int=2**128 - 1))
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e308)
BYTES = (b"", b"\0" * 4, b"\xff" * 70_000)
REPEATS = 300
# What these make the broker wait for is asked for elsewhere.
UNASKED = {"max_wait_ms"}
# A listener without SASL closes after these, and a produce without acks is not answered.
UNANSWERED = {"SaslHandshakeRequest", "SaslAuthenticateRequest", "ProduceRequest"}
ASKED = [one for one in requests() if type(one).__name__ not in UNANSWERED]
# Those that are refused for who sends them, from somebody who may.
ASKED += [
    OffsetCommitRequest(
        group_id="of-nobody",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ],
    ),
    ConsumerGroupHeartbeatRequest(
        group_id="of-consumers",
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    ),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("target"), settings=KEEP_EVERYTHING) as running:
        with WireClient(running.port) as client:
            create_topic(client, TOPIC, 2)
        yield running


@pytest.mark.parametrize("request_", ASKED, ids=lambda one: type(one).__name__)
def test_every_field_may_be_as_odd_as_its_type_allows(
    target: BrokerProcess, request_: Request
) -> None:
    asked = 0
    for path, versions in places(request_, tuple(request_.spec.supported)):
        for version in dict.fromkeys((versions[0], versions[-1])):
            with WireClient(target.port) as client:
                for value in odd_values(request_, path):
                    frame = changed(request_, path, value)
                    try:
                        codec.encode(frame, version)
                    except (AssertionError, AttributeError, TypeError, ValueError):
                        continue  # this version has no such value
                    client.send(frame, version)
                    try:
                        client.receive_frame()
                    except ConnectionError:
                        pytest.fail(f"closed after {path} was {value!r:.80} in version {version}")
                    asked += 1
    assert asked or not type(request_).fields
    assert "Traceback" not in target.log_text()
    assert_serves(target.port)


Path = tuple[str | int, ...]


def places(
    part: Struct, versions: Sequence[int], above: Path = ()
) -> Iterator[tuple[Path, Sequence[int]]]:
    """Where the fields of a request are, and those of the structs in it, and which versions have
    each.
    """
    for name, field in type(part).fields.items():
        having = [version for version in versions if field.is_in(version)]
        if not having or name in UNASKED:
            continue
        path = (*above, name)
        yield path, having
        held = getattr(part, name)
        if isinstance(held, Struct):
            yield from places(held, having, path)
        elif isinstance(held, list | tuple):
            for index, element in enumerate(held):
                if isinstance(element, Struct):
                    yield from places(element, having, (*path, index))


def odd_values(request: Request, path: Path) -> Sequence[object]:
    """What the field at `path` may be."""
    *above, name = path
    holder = found(request, above)
    assert isinstance(holder, Struct)
    field: Field = type(holder).fields[str(name)]
    held = getattr(holder, str(name))
    kind = field.kind
    if isinstance(kind, ArrayOf):
        return [(), [*(held or ())] * 2, [*(held or ())] * REPEATS, None]
    if isinstance(kind, Fixed) and kind.code in "bhiq":
        end = 1 << (8 * kind.size_bytes - 1)
        return (-end, -2, -1, 0, 1, end - 1)
    others: dict[type, Sequence[object]] = {
        bool: (True, False),
        float: FLOATS,
        uuid.UUID: UUIDS,
        bytes: BYTES,
    }
    return others.get(type(held), (*TEXTS, None) if isinstance(held, str) else (None,))


def found(part: object, path: Sequence[str | int]) -> object:
    for step in path:
        part = part[step] if isinstance(step, int) else getattr(part, step)  # type: ignore[index]
    return part


def changed(request: Request, path: Path, value: object) -> Request:
    """A copy of the request with another value at `path`."""
    copied = copy_of(request)
    *above, name = path
    setattr(found(copied, above), str(name), value)
    assert isinstance(copied, Request)
    return copied


def copy_of(part: object) -> object:
    if isinstance(part, Struct):
        return type(part)(**{name: copy_of(value) for name, value in part.values()})
    return [copy_of(one) for one in part] if isinstance(part, list | tuple) else part

"""Bytes that are no request: the connection is closed, and the broker goes on serving others."""

from __future__ import annotations

import struct

import pytest

from strandline.broker.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import assert_serves, batch, frame_of, produce_request, software

pytestmark = pytest.mark.slow

REQUEST_BYTES_MAX = 100 * 1024 * 1024  # socket.request.max.bytes
UNSUPPORTED_VERSION = 35
REBOOTSTRAP_REQUIRED = 129
INVALID_REQUEST = 42

METADATA = 3
METADATA_ONE_TOPIC = MetadataRequest(topics=[MetadataRequestTopic(name="any")])


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, *, tags: bytes = b"") -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 4) + b"test" + tags


REFUSED: dict[str, bytes] = {
    "negative length": struct.pack(">i", -1),
    "most negative length": struct.pack(">i", -(2**31)),
    "length above socket.request.max.bytes": struct.pack(">i", REQUEST_BYTES_MAX + 1),
    "largest length": struct.pack(">i", 2**31 - 1),
    "empty frame": framed(b""),
    "one byte": framed(b"\x00"),
    "frame that ends in the header": framed(struct.pack(">hh", METADATA, 12)),
    "client id longer than the frame": framed(struct.pack(">hhih", METADATA, 1, 7, 500) + b"x"),
    "header alone": framed(header(METADATA, 1)),
    "unknown API": framed(header(999, 0)),
    "negative API": framed(header(-1, 0)),
    "API that is not served": framed(header(ApiKey.JOIN_GROUP, 0)),
    "API of controllers only": framed(header(52, 0)),
    "version above the highest": framed(header(METADATA, 14, tags=b"\0") + b"\0\0\0\0"),
    "negative version": framed(header(METADATA, -1)),
    "Produce version that is advertised and refused": framed(header(ApiKey.PRODUCE, 2)),
    "Fetch version below the lowest": framed(header(ApiKey.FETCH, 3)),
    "garbage body": framed(header(METADATA, 1) + b"\x00\x00\x00\x07garbage"),
    "body of ones": framed(header(METADATA, 12, tags=b"\0") + b"\xff" * 64),
    "array count beyond what is left": framed(header(METADATA, 1) + struct.pack(">i", 2**31 - 1)),
    "compact array count beyond what is left": framed(
        header(METADATA, 12, tags=b"\0") + b"\xff\xff\xff\xff\x07\x00\x00"
    ),
    "varint that does not end": framed(header(METADATA, 12, tags=b"\0") + b"\xff" * 6),
    "null where null is not allowed": framed(
        header(ApiKey.CREATE_TOPICS, 2) + struct.pack(">i", -1) + bytes(5)
    ),
    "negative count": framed(header(ApiKey.CREATE_TOPICS, 2) + struct.pack(">i", -7) + bytes(5)),
    "string longer than the frame": framed(
        header(METADATA, 1) + struct.pack(">ih", 1, 32767) + b"x"
    ),
    "a tag twice": framed(
        frame_of(METADATA_ONE_TOPIC, 12)[4:-1] + b"\x02" + b"\x05\x01x" + b"\x05\x01x"
    ),
    "tag longer than the frame": framed(
        frame_of(METADATA_ONE_TOPIC, 12)[4:-1] + b"\x01" + b"\x05\x7f"
    ),
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_request_closes_the_connection_and_nothing_else(
    broker: BrokerProcess, sent: bytes
) -> None:
    with WireClient(broker.port) as client:
        client.send_raw(sent)
        assert client.closed_by_broker()
    assert_serves(broker.port)


@pytest.mark.parametrize("byte_count", [1, 3, 4, 5, 20, -1])
def test_a_torn_frame_is_forgotten_when_its_client_goes_away(
    broker: BrokerProcess, byte_count: int
) -> None:
    with WireClient(broker.port) as client:
        client.send_raw(frame_of(METADATA_ONE_TOPIC, 12)[:byte_count])
    assert_serves(broker.port)


def test_a_frame_that_comes_byte_by_byte_is_answered(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        for byte in frame_of(software(), 3, correlation_id=11):
            client.send_raw(bytes([byte]))
        assert client.receive(ApiVersionsResponse, 3, 11).error_code == 0


def test_announced_bytes_that_never_come_cost_no_memory(broker: BrokerProcess) -> None:
    """32 clients announce 3 GiB together; a buffer grows with what has arrived."""
    before_mib = broker.resident_mib()
    clients = [WireClient(broker.port) for _ in range(32)]
    for client in clients:
        client.send_raw(struct.pack(">i", REQUEST_BYTES_MAX) + header(ApiKey.PRODUCE, 9))
    assert_serves(broker.port)
    assert broker.resident_mib() - before_mib < 10
    for client in clients:
        client.close()


def test_requests_before_a_broken_one_are_answered_before_the_connection_closes(
    broker: BrokerProcess,
) -> None:
    with WireClient(broker.port) as client:
        client.send_raw(frame_of(software(), 3, correlation_id=1) + framed(header(999, 0)))
        assert client.receive(ApiVersionsResponse, 3, 1).error_code == 0
        assert client.closed_by_broker()
    assert_serves(broker.port)


# --- what looks odd and is allowed -----------------------------------------------------------


def test_a_null_client_id_is_an_empty_one(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        client.send_raw(framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 5, -1)))
        assert client.receive(ApiVersionsResponse, 0, 5).error_code == 0


def test_tags_that_we_do_not_know_are_skipped(broker: BrokerProcess) -> None:
    """In the header and in the body: a newer client may send them."""
    unknown = b"\x01\x64\x03abc"
    body = b"\x06tests\x041.0" + unknown
    with WireClient(broker.port) as client:
        client.send_raw(framed(header(ApiKey.API_VERSIONS, 3, tags=unknown) + body))
        assert client.receive(ApiVersionsResponse, 3, 7).error_code == 0


@pytest.mark.parametrize("api_key", [METADATA, ApiKey.PRODUCE])
def test_bytes_behind_the_last_field_are_passed_over(broker: BrokerProcess, api_key: int) -> None:
    """As Kafka does: librdkafka's request for all topics is three bytes too long."""
    request = METADATA_ONE_TOPIC if api_key == METADATA else produce_request("any", batch(1))
    with WireClient(broker.port) as client:
        client.send_raw(framed(frame_of(request, 12)[4:] + b"!!!"))
        assert len(client.receive_frame()) > 4


# --- ApiVersions -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_our_range(
    client: WireClient, version: int
) -> None:
    client.send_raw(framed(header(ApiKey.API_VERSIONS, version, tags=b"\0") + b"whatever"))
    ours = SPECS[ApiKey.API_VERSIONS].supported
    expected = struct.pack(">ihi", 7, UNSUPPORTED_VERSION, 1) + struct.pack(
        ">hhh", ApiKey.API_VERSIONS, ours.lowest, ours.highest
    )
    assert client.receive_frame() == expected
    # The client asks again on the same connection.
    assert client.ask(software(), ApiVersionsResponse, ours.highest).error_code == 0


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_what_is_served_and_nothing_else(
    client: WireClient, version: int
) -> None:
    response = client.ask(software(), ApiVersionsResponse, version)
    assert response.error_code == 0
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert listed == {
        int(spec.key): (spec.supported.lowest, spec.supported.highest) for spec in SPECS.values()
    }


@pytest.mark.parametrize(
    ("name", "version_text"),
    [("", "1.0"), ("a name", "1.0"), ("-x", "1.0"), ("x.", "1.0"), ("ok", ""), ("ok", "1.0\n")],
)
def test_an_unacceptable_client_software_name_is_an_invalid_request(
    client: WireClient, name: str, version_text: str
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version_text)
    for version in (3, 4, 5):
        response = client.ask(request, ApiVersionsResponse, version)
        assert response.error_code == INVALID_REQUEST
    # Versions before KIP-511 carry no name, and the connection is still there.
    assert client.ask(request, ApiVersionsResponse, 2).error_code == 0


def test_a_client_that_means_another_cluster_or_node_starts_again(client: WireClient) -> None:
    """Its address has a new owner (KIP-1242)."""
    cluster_id = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0).cluster_id

    def meant(cluster_id: str | None, node_id: int, version: int = 5) -> int:
        request = software().replaced(cluster_id=cluster_id, node_id=node_id)
        return client.ask(request, ApiVersionsResponse, version).error_code

    assert meant(cluster_id, 1) == 0
    assert meant(cluster_id, 2) == meant("another", 1) == REBOOTSTRAP_REQUIRED
    # A client knows both or neither.
    assert meant(None, 1) == meant(cluster_id, -1) == INVALID_REQUEST
    assert meant(None, -1) == 0
    # Earlier versions do not carry them.
    assert meant("another", 2, version=4) == 0


# --- large requests --------------------------------------------------------------------------


def test_a_request_without_records_may_not_be_large(broker: BrokerProcess) -> None:
    """Three million topics in one Metadata request are no question, they are a burden."""
    body = struct.pack(">i", 3_000_000) + bytes(3_000_000)
    with WireClient(broker.port) as client:
        client.send_raw(framed(header(METADATA, 1) + body))
        assert client.closed_by_broker()
    assert_serves(broker.port)


def test_a_large_produce_to_a_topic_that_does_not_exist_is_answered(client: WireClient) -> None:
    frame = frame_of(produce_request("no-such-topic", batch(value=b"x" * 20_000_000)), 9)
    client.send_raw(frame)
    assert struct.unpack(">i", client.receive_frame()[:4]) == (1,)

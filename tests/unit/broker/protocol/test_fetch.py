"""The typed entrances of Fetch."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.fetch import decode_fetch_request, encode_fetch_response
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.unit.broker.protocol.message_values import SEEDS, random_message


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, version=st.integers(4, 18))
def test_the_typed_entrances_of_fetch_agree_with_the_codec(seed: int, version: int) -> None:
    request = random_message(seed, FetchRequest, version)
    body = memoryview(codec.join(codec.encode(request, version)))
    assert decode_fetch_request(version, body) == request
    response = random_message(seed, FetchResponse, version)
    assert encode_fetch_response(version, response) == codec.encode(response, version)

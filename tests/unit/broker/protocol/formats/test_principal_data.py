"""The principal of a forwarded request, byte by byte."""

from __future__ import annotations

import pytest

from strandline.broker.protocol.formats.principal_data import read_principal, write_principal
from strandline.broker.protocol.schema.errors import MalformedRequest

# Version, compact strings, "not by a token", no tags.
ALICE = b"\0\0\x05User\x06alice\0\0"


def test_a_principal_is_written_as_kafka_writes_it_and_read_back() -> None:
    assert write_principal("User", "alice") == ALICE
    found = read_principal(memoryview(ALICE))
    assert (found.principal_type, found.name, found.token_authenticated) == ("User", "alice", False)
    assert read_principal(memoryview(ALICE[:-2] + b"\x01\0")).token_authenticated


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x01" + ALICE[2:], ALICE[:-1], ALICE + b"\0"])
def test_what_is_no_principal_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_principal(memoryview(data))

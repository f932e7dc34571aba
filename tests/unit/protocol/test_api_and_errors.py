"""The API table, the error table, and the rows of the protocol page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map

from strandline.broker.protocol import codec
from strandline.broker.protocol.api import (
    ADVERTISED,
    SCHEMAS,
    SPECS,
    SUPPORTED,
    ApiKey,
    VersionRange,
    api_name,
    protocol_rows,
)
from strandline.broker.protocol.errors import ErrorCode, UnsupportedVersion
from strandline.broker.protocol.header import decode_request_header, encode_request_header
from tests.unit.protocol.oracle_tables import ranges_of_a_real_broker


def ranges_of_kafka() -> dict[int, tuple[int, int]]:
    """Up to where Kafka 4.3 goes, and from where Kafka 3.9 began: Kafka 4 gave up old clients."""
    newest, oldest = ranges_of_a_real_broker((4, 3)), ranges_of_a_real_broker((3, 9))
    return {
        key: (oldest.get(key, (lowest, 0))[0], highest) for key, (lowest, highest) in newest.items()
    }


def test_we_advertise_what_kafka_advertises_and_what_it_once_did() -> None:
    theirs = ranges_of_kafka()
    ours = {int(key): (range_.lowest, range_.highest) for key, range_ in ADVERTISED.items()}
    assert ours == {key: theirs[key] for key in ours}


def test_what_is_advertised_is_what_is_supported() -> None:
    assert SUPPORTED == ADVERTISED
    assert SUPPORTED[ApiKey.PRODUCE] == VersionRange(0, 13)
    assert SUPPORTED[ApiKey.FETCH] == VersionRange(0, 18)


def test_every_api_has_its_messages_by_its_name() -> None:
    for row in SCHEMAS.values():
        key = row.key
        assert codec.request_class(key).__name__ == f"{api_name(key)}Request"
        assert codec.response_class(key).__name__ == f"{api_name(key)}Response"
        assert codec.request_class(key).spec is row


def test_every_table_has_the_versions_of_kafka_whether_it_is_served_or_not() -> None:
    theirs = ranges_of_kafka()
    for key, row in SCHEMAS.items():
        assert theirs[key] == (row.advertised.lowest, row.advertised.highest)


def test_an_api_without_a_handler_is_neither_routed_nor_advertised_nor_documented() -> None:
    unserved = {row.key for row in SCHEMAS.values() if not row.served}
    served = set(SCHEMAS) - unserved
    assert set(SPECS) == set(SUPPORTED) == set(ADVERTISED) == served
    assert {row.key for row in protocol_rows()} == served
    for row in SCHEMAS.values():
        for version in row.supported:
            frame = memoryview(encode_request_header(row.key, version, 1, "c"))
            if row.served:
                assert decode_request_header(frame).api_key == row.key
            else:
                with pytest.raises(UnsupportedVersion):
                    decode_request_header(frame)


def test_api_numbers_are_kafkas() -> None:
    for key in ApiKey:
        assert api_key_map[key.value] == key.name.lower()


def test_error_codes_are_kafkas() -> None:
    assert {(code.name.lower(), code.value) for code in ErrorCode} == {
        (code.name, code.value) for code in KioErrorCode
    }


def test_every_error_has_a_message_of_one_sentence() -> None:
    for code in ErrorCode:
        assert code.message.endswith("."), code
        assert code.message[0].isupper(), code
    assert ErrorCode.GROUP_AUTHORIZATION_FAILED.message == "Group authorization failed."


def test_version_ranges_are_inclusive() -> None:
    versions = VersionRange(2, 4)
    assert list(versions) == [2, 3, 4]
    assert 4 in versions
    assert 5 not in versions
    assert "2" not in versions
    assert str(versions) == "2-4"
    assert str(VersionRange(0, 0)) == "0"


def test_the_protocol_page_has_one_row_per_api_in_order() -> None:
    rows = protocol_rows()
    assert [row.key for row in rows] == sorted(SUPPORTED)
    assert rows[0].name == "Produce"
    assert (rows[0].supported, rows[0].advertised, rows[0].flexible) == ("0-13", "0-13", "9+")


@pytest.mark.slow
def test_the_wire_loads_without_the_libraries_that_check_it() -> None:
    """And without generating a single codec: that waits for the first use."""
    program = (
        "import sys; import strandline.broker.protocol.codec as codec;"
        "import strandline.broker.protocol.produce, strandline.broker.protocol.fetch;"
        "assert not {'kio', 'kafka', 'boto3', 'numpy'} & set(sys.modules);"
        "assert not codec._decoders and not codec._encoders"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)

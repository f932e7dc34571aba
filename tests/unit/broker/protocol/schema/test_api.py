"""The API table, and the rows of the protocol page."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest
from kio.schema.index import api_key_map, schema_name_map

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import decode_request_header, routes_of
from strandline.broker.protocol.schema.api import (
    CONTROLLER_SPECS,
    EVERY_SPEC,
    SPECS,
    ApiKey,
    VersionRange,
    api_name,
)
from strandline.broker.protocol.schema.errors import UnsupportedVersion
from tests.support.response_class import response_class
from tests.unit.broker.protocol.message_values import NEWEST_VERSIONS
from tests.unit.broker.protocol.oracle_tables import ranges_of_a_real_broker


def ranges_of_kafka() -> dict[int, tuple[int, int]]:
    """Up to where Kafka 4.4 goes, and from where Kafka 3.9 began: Kafka 4 gave up old clients."""
    newest, oldest = ranges_of_a_real_broker((4, 3)), ranges_of_a_real_broker((3, 9))
    # kafka-python does not know Kafka 4.4 yet.
    later = {int(key): version for key, version in NEWEST_VERSIONS.items()}
    return {
        key: (oldest.get(key, (lowest, 0))[0], later.get(key, highest))
        for key, (lowest, highest) in newest.items()
    }


def test_every_table_has_the_versions_of_kafka_and_those_it_once_had() -> None:
    theirs = ranges_of_kafka()
    for key, row in SPECS.items():
        assert theirs[key] == (row.supported.lowest, row.supported.highest)
    assert SPECS[ApiKey.PRODUCE].supported == VersionRange(0, 13)
    assert SPECS[ApiKey.FETCH].supported == VersionRange(0, 18)


def test_what_controllers_serve_has_the_versions_of_kafka() -> None:
    for key, row in CONTROLLER_SPECS.items():
        assert list(row.supported) == sorted(schema_name_map[api_key_map[key]])


def test_listeners_of_brokers_serve_nothing_of_controllers() -> None:
    assert not CONTROLLER_SPECS.keys() & SPECS.keys()
    for key, row in CONTROLLER_SPECS.items():
        for version in row.supported:
            frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + b"\0")
            with pytest.raises(UnsupportedVersion):
                decode_request_header(frame)
            header = decode_request_header(frame, routes_of(CONTROLLER_SPECS.values()))
            assert (header.api_key, header.api_version) == (key, version)


def test_every_api_has_its_messages_by_its_name() -> None:
    for row in EVERY_SPEC.values():
        key = row.key
        assert codec.request_class(key).__name__ == f"{api_name(key)}Request"
        assert response_class(key).__name__ == f"{api_name(key)}Response"
        assert codec.request_class(key).spec is row


def test_what_is_in_the_table_is_routed_and_nothing_else() -> None:
    for key in ApiKey:
        versions = SPECS[key].supported if key in SPECS else ()
        for version in range(-1, 20):
            frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + b"\0")
            if version in versions:
                assert decode_request_header(frame).api_key == key
            else:
                with pytest.raises(UnsupportedVersion):
                    decode_request_header(frame)


def test_api_numbers_are_kafkas() -> None:
    for key in ApiKey:
        assert api_key_map[key.value] == key.name.lower()


def test_version_ranges_are_inclusive() -> None:
    versions = VersionRange(2, 4)
    assert list(versions) == [2, 3, 4]
    assert 4 in versions
    assert 5 not in versions
    assert "2" not in versions
    assert str(versions) == "2-4"
    assert str(VersionRange(0, 0)) == "0"


@pytest.mark.slow
def test_the_wire_loads_without_the_libraries_that_check_it() -> None:
    """And without generating a single codec: that waits for the first use."""
    program = (
        "import sys; import strandline.broker.protocol.codec.codec as codec;"
        "import strandline.broker.protocol.produce;"
        "assert not {'kio', 'kafka', 'boto3', 'numpy'} & set(sys.modules);"
        "assert not codec.decoder_for.cache_info().currsize;"
        "assert not codec.encoder_for.cache_info().currsize"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)

"""The error table: codes and messages."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from strandline.broker.protocol.schema.errors import ErrorCode

# Of Kafka 4.4, which kio does not know.
NEWEST = {
    ("group_deletion_failed", 134),
    ("streams_topology_description_update_failed", 135),
    ("controller_id_not_registered", 136),
}


def test_error_codes_are_kafkas() -> None:
    known = {(code.name, code.value) for code in KioErrorCode}
    assert {(code.name.lower(), code.value) for code in ErrorCode} == known | NEWEST


def test_every_error_has_a_message_of_one_sentence() -> None:
    for code in ErrorCode:
        assert code.message.endswith("."), code
        assert code.message[0].isupper(), code
    assert ErrorCode.GROUP_AUTHORIZATION_FAILED.message == "Group authorization failed."

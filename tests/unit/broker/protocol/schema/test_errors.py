"""The error table: codes and messages."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from strandline.broker.protocol.schema.errors import ErrorCode


def test_error_codes_are_kafkas() -> None:
    assert {(code.name.lower(), code.value) for code in ErrorCode} == {
        (code.name, code.value) for code in KioErrorCode
    }


def test_every_error_has_a_message_of_one_sentence() -> None:
    for code in ErrorCode:
        assert code.message.endswith("."), code
        assert code.message[0].isupper(), code
    assert ErrorCode.GROUP_AUTHORIZATION_FAILED.message == "Group authorization failed."

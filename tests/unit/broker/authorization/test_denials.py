"""Denials are in the log, and nobody fills the log with them."""

from __future__ import annotations

import json
import logging

import pytest

from strandline.broker.audit.record import AuditRecord
from strandline.broker.authorization.authorizer import Denial
from strandline.broker.authorization.denials import NAMES_TOLD_MAX, DenialLog, recorded_too
from strandline.broker.security.acl import AclOperation, AclPermission, ResourceKind
from tests.support.manual_clock import ManualClock
from tests.unit.broker.authorization.ruled import ALICE, HOST, rule


def denial(name: str) -> Denial:
    return Denial(
        principal=ALICE,
        host=HOST,
        operation=AclOperation.WRITE,
        kind=ResourceKind.TOPIC,
        name=name,
        rule=rule(AclOperation.ALL, "t", permission=AclPermission.DENY),
    )


def test_a_denial_says_who_asked_for_what_and_which_rule_denies_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = DenialLog(ManualClock())
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            told.note(denial("t"))
    (line,) = caplog.records
    assert line.__dict__["fields"] == {
        "principal": ALICE,
        "host": HOST,
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "denied_by": f"LITERAL:t {ALICE} from *",
    }


def test_names_that_a_client_makes_up_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = DenialLog(ManualClock())
    with caplog.at_level(logging.INFO):
        for number in range(10_000):
            told.note(denial(f"t{number}"))
    assert len(caplog.records) <= NAMES_TOLD_MAX


def test_a_denial_is_in_the_record_too() -> None:
    texts, noted = list[str](), list[Denial]()
    record = AuditRecord(texts.append, ManualClock())
    recorded_too(record, noted.append)(denial("t"))
    (text,) = texts
    line = json.loads(text)
    assert (line["event"], line["principal"], line["address"]) == ("denied", ALICE, HOST)
    assert (line["operation"], line["resource"]) == ("WRITE", "TOPIC:t")
    assert line["rule"] == f"LITERAL:t {ALICE} from *"
    assert noted == [denial("t")]

"""Denials are in the log and in the record, each is counted, and nobody fills either with them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from strandline.broker.audit.events import (
    CLIENTS_MAX,
    KINDS_MAX,
    KINDS_OF_CLIENT_MAX,
    NAME_MAX,
)
from strandline.broker.audit.record import AuditRecord
from strandline.broker.authorization.authorizer import Denial
from strandline.broker.authorization.denials import Denials
from strandline.broker.security.acl import AclOperation, AclPermission, ResourceKind
from tests.support.manual_clock import ManualClock
from tests.unit.broker.authorization.ruled import ALICE, HOST, authorizer_of, rule

RULE = rule(AclOperation.ALL, "t", permission=AclPermission.DENY)


def denial(name: str, host: str = HOST) -> Denial:
    return Denial(ALICE, host, AclOperation.WRITE, ResourceKind.TOPIC, name)


class Rig:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.denials = Denials(authorizer_of([RULE]).rule_of)
        self.denials.record_in(AuditRecord(self.texts.append, ManualClock()))

    def lines(self) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in self.texts]
        self.texts.clear()
        return found


def test_a_denial_says_who_asked_for_what_and_which_rule_denies_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            rig.denials.note(denial("t"))
    (line,) = caplog.records
    assert line.__dict__["fields"] == {
        "principal": ALICE,
        "host": HOST,
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "denied_by": f"LITERAL:t {ALICE} from *",
    }
    (recorded,) = rig.lines()
    assert recorded == {
        "time": recorded["time"],
        "event": "denied",
        "principal": ALICE,
        "address": HOST,
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "rule": f"LITERAL:t {ALICE} from *",
    }


def test_the_same_denial_is_told_once_a_minute_and_the_others_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    for _ in range(100):
        rig.denials.note(denial("t"))
    rig.denials.note(denial("u"))
    assert [one["resource"] for one in rig.lines()] == ["TOPIC:t", "TOPIC:u"]
    # Also if it never comes again.
    with caplog.at_level(logging.INFO):
        rig.denials.tell_counts()
    (rest,) = rig.lines()
    assert (rest["resource"], rest["not_recorded"]) == ("TOPIC:t", 99)
    assert caplog.records[0].__dict__["fields"]["not_logged"] == 99
    rig.denials.note(denial("t"))
    assert len(rig.lines()) == 1
    rig.denials.tell_counts()
    assert rig.lines() == []


def test_names_that_a_client_makes_up_fill_neither_log_nor_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    with caplog.at_level(logging.INFO):
        for number in range(5000):
            rig.denials.note(denial(f"t{number}"))
    assert len(caplog.records) == len(rig.lines()) == KINDS_OF_CLIENT_MAX
    rig.denials.tell_counts()
    (others,) = rig.lines()
    assert (others["principal"], others["address"]) == (ALICE, HOST)
    assert (others["operation"], others["resource"]) == ("WRITE", "TOPIC")
    assert others["not_recorded"] == 5000 - KINDS_OF_CLIENT_MAX
    rig.denials.note(denial("t" * 32_767))
    (long,) = rig.lines()
    assert long["resource"] == "TOPIC:" + "t" * NAME_MAX


def test_made_up_names_hide_neither_another_client_nor_another_attempt_of_the_same() -> None:
    rig = Rig()
    for number in range(5000):
        rig.denials.note(denial(f"t{number}"))
    rig.lines()
    rig.denials.note(denial("secret", "10.0.0.66"))
    rig.denials.note(denial("secret")._replace(kind=ResourceKind.TRANSACTIONAL_ID))
    other, attempt = rig.lines()
    assert (other["address"], other["resource"]) == ("10.0.0.66", "TOPIC:secret")
    assert (attempt["address"], attempt["resource"]) == (HOST, "TRANSACTIONAL_ID:secret")


def test_many_addresses_do_not_fill_the_disk_either() -> None:
    rig = Rig()
    for number in range(KINDS_MAX + CLIENTS_MAX + 500):
        rig.denials.note(denial("t", f"2001:db8:0:0:0:0:0:{number:x}"))
    assert len(rig.lines()) == KINDS_MAX
    rig.denials.tell_counts()
    counts = [line["not_recorded"] for line in rig.lines()]
    assert (len(counts), sum(counts), counts[-1]) == (CLIENTS_MAX + 1, CLIENTS_MAX + 500, 500)

"""The record: what is in it, how often, and that no client can stop or forge it."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.audit.login import Login
from strandline.broker.audit.record import (
    NAMES_TOLD_MAX,
    OTHERS,
    PAIRS_MAX,
    QUIET_S,
    TEXT_MAX,
    AuditRecord,
    open_record,
)
from strandline.broker.handlers.admin.logger_configs import logger_levels
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.errors import InvalidConfig
from tests.support.manual_clock import ManualClock

ALICE = ClientIdentity(user="alice", address="0:0:0:0:0:0:0:1", listener="CLIENTS")
LOGIN = Login(user="alice", mechanism="PLAIN", listener="CLIENTS", address="10.0.0.1")


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.output = io.StringIO()
        self.record = AuditRecord(logging.StreamHandler(self.output), self.clock)

    def lines(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.output.getvalue().splitlines()]
        self.output.seek(0)
        self.output.truncate()
        return found

    def deny(self, resource: str = "TOPIC:a", rule: str = "") -> None:
        self.record.denied(
            principal="User:alice",
            address="10.0.0.1",
            operation="READ",
            resource=resource,
            rule=rule,
        )


def test_a_line_is_json_with_the_time_and_who() -> None:
    rig = Rig()
    rig.record.changed(ALICE, "CreateTopics", {"topic": "a", "partitions": 3}, "NONE")
    assert rig.lines() == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "event": "change",
            "principal": "User:alice",
            "address": "0:0:0:0:0:0:0:1",
            "listener": "CLIENTS",
            "request": "CreateTopics",
            "topic": "a",
            "partitions": 3,
            "error": "NONE",
        }
    ]


def test_every_change_and_every_good_login_is_a_line() -> None:
    rig = Rig()
    for _ in range(500):
        rig.record.changed(ALICE, "DeleteTopics", {"topic": "a"}, "NONE")
        rig.record.logged_in(LOGIN)
    assert len(rig.lines()) == 1000


def test_the_same_denial_is_a_line_a_minute_and_the_others_are_counted() -> None:
    rig = Rig()
    for _ in range(100):
        rig.deny(rule="DENY READ to User:* on TOPIC:a")
    rig.deny("TOPIC:b")
    first, other = rig.lines()
    assert (first["rule"], first["resource"], other["resource"]) == (
        "DENY READ to User:* on TOPIC:a",
        "TOPIC:a",
        "TOPIC:b",
    )
    rig.clock.advance_ms(int(QUIET_S * 1000))
    rig.deny()
    (again,) = rig.lines()
    assert again["not_recorded"] == 99


def test_names_that_a_client_makes_up_are_few_lines() -> None:
    rig = Rig()
    for number in range(5000):
        rig.deny(f"TOPIC:t{number}")
    assert len(rig.lines()) == NAMES_TOLD_MAX


def test_failed_logins_of_an_address_are_limited_whatever_names_they_try() -> None:
    rig = Rig()
    for number in range(100):
        tried = Login(user=f"u{number}", mechanism="PLAIN", listener="CLIENTS", address="10.0.0.1")
        rig.record.login_failed(tried, "no such user, or a wrong password")
    (line,) = rig.lines()
    assert (line["result"], line["principal"], line["address"]) == (
        "refused",
        "User:u0",
        "10.0.0.1",
    )


def test_names_of_clients_cannot_forge_a_line_or_fill_the_disk() -> None:
    rig = Rig()
    evil = 'a"}\n{"event":"change"\u2028\x1b[2J' + "x" * 100_000
    what = {"group": evil, "properties": {"p": "x" * 100_000}}
    rig.record.changed(ALICE, "DeleteGroups", what, "NONE")
    text = rig.output.getvalue()
    assert re.fullmatch(r"[ -~]+\n", text)
    assert len(text) < 3 * TEXT_MAX
    (line,) = rig.lines()
    assert line["group"].startswith('a"}\n{"event":"change"\u2028\x1b[2J')


def test_traffic_is_a_line_for_each_user_and_topic() -> None:
    rig = Rig()
    rig.record.wrote("User:alice", "a", 100)
    rig.record.wrote("User:alice", "a", 20)
    rig.record.read("User:alice", "a", 7)
    rig.record.read("User:bob", "b", 1)
    rig.record.tell_traffic()
    found = {
        (line["principal"], line["topic"]): (line["read_bytes"], line["written_bytes"])
        for line in rig.lines()
    }
    assert found == {("User:alice", "a"): (7, 120), ("User:bob", "b"): (1, 0)}
    rig.record.tell_traffic()
    assert rig.lines() == []


def test_more_users_and_topics_than_a_minute_holds_are_one_line() -> None:
    rig = Rig()
    for number in range(PAIRS_MAX + 5):
        rig.record.read("User:alice", f"t{number}", 1)
    rig.record.tell_traffic()
    lines = rig.lines()
    assert len(lines) == PAIRS_MAX + 1
    assert (lines[-1]["topic"], lines[-1]["read_bytes"]) == (OTHERS, 5)


def test_no_client_can_set_the_level_of_the_record() -> None:
    rig = Rig()
    assert not [name for name in logger_levels() if name.startswith("broker.audit")]
    logging.getLogger("strandline").setLevel(logging.CRITICAL)
    try:
        rig.record.logged_in(LOGIN)
    finally:
        logging.getLogger("strandline").setLevel(logging.NOTSET)
    assert len(rig.lines()) == 1


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    record = open_record(str(file), ManualClock())
    record.logged_in(LOGIN)
    file.rename(tmp_path / "audit.json.1")
    record.logged_in(LOGIN)
    record.close()
    assert file.read_text() == (tmp_path / "audit.json.1").read_text()


def test_a_file_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        open_record(str(tmp_path / "none" / "audit.json"), ManualClock())

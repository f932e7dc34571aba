"""The record: what is in it, how often, and that no client can stop or forge it."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from strandline.broker.audit.line import ENTRIES_MAX, TEXT_MAX
from strandline.broker.audit.login import Login
from strandline.broker.audit.record import OTHERS, PAIRS_MAX, AuditRecord
from strandline.broker.security.identity import ClientIdentity
from tests.support.manual_clock import ManualClock

ALICE = ClientIdentity(user="alice", address="0:0:0:0:0:0:0:1", listener="CLIENTS")
LOGIN = Login(user="alice", mechanism="PLAIN", listener="CLIENTS", address="10.0.0.1")


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.texts: list[str] = []
        self.record = AuditRecord(self.texts.append, self.clock)

    def lines(self) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in self.texts]
        self.texts.clear()
        return found


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


def test_a_change_that_fails_again_and_again_is_a_line_a_minute() -> None:
    """Who may change nothing asks to, as fast as it can."""
    rig = Rig()
    for _ in range(1000):
        rig.record.changed(ALICE, "DeleteTopics", {"topic": "a"}, "TOPIC_AUTHORIZATION_FAILED")
    rig.record.changed(ALICE, "DeleteTopics", {"topic": "a"}, "NONE")
    refused, done = rig.lines()
    assert (refused["error"], done["error"]) == ("TOPIC_AUTHORIZATION_FAILED", "NONE")
    rig.record.tell()
    (rest,) = rig.lines()
    assert (rest["topic"], rest["error"], rest["not_recorded"]) == (
        "a",
        "TOPIC_AUTHORIZATION_FAILED",
        999,
    )


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
    rig.record.tell()
    (rest,) = rig.lines()
    assert (rest["address"], rest["mechanism"], rest["not_recorded"]) == ("10.0.0.1", "PLAIN", 99)


def test_names_of_clients_cannot_forge_a_line_or_fill_the_disk() -> None:
    rig = Rig()
    evil = 'a"}\n{"event":"change"\u2028\x1b[2J' + "x" * 100_000
    what = {"group": evil, "properties": {"p": "x" * 100_000}}
    rig.record.changed(ALICE, "DeleteGroups", what, "NONE")
    (text,) = rig.texts
    assert re.fullmatch(r"[ -~]+", text)
    assert len(text) < 3 * TEXT_MAX
    (line,) = rig.lines()
    assert line["group"].startswith('a"}\n{"event":"change"\u2028\x1b[2J')


def test_a_line_is_json_whatever_numbers_and_properties_a_client_sends() -> None:
    rig = Rig()
    numbers = {"a": float("nan"), "b": float("inf"), "c": -1.5}
    rig.record.changed(ALICE, "AlterClientQuotas", {"quotas": numbers}, "NONE")
    many = {f"p{number}": "v" for number in range(10 * ENTRIES_MAX)}
    rig.record.changed(ALICE, "CreateTopics", {"properties": many}, "NONE")
    (text, long) = rig.texts
    assert json.loads(text, parse_constant=lambda _: 1 / 0)["quotas"] == {
        "a": "nan",
        "b": "inf",
        "c": -1.5,
    }
    assert len(json.loads(long)["properties"]) == ENTRIES_MAX + 1


def test_traffic_is_a_line_for_each_user_and_topic() -> None:
    rig = Rig()
    rig.record.wrote("User:alice", "a", 100)
    rig.record.wrote("User:alice", "a", 20)
    rig.record.read("User:alice", "a", 7)
    rig.record.read("User:bob", "b", 1)
    rig.record.tell()
    found = {
        (line["principal"], line["topic"]): (line["read_bytes"], line["written_bytes"])
        for line in rig.lines()
    }
    assert found == {("User:alice", "a"): (7, 120), ("User:bob", "b"): (1, 0)}
    rig.record.tell()
    assert rig.lines() == []


def test_more_users_and_topics_than_a_minute_holds_are_one_line() -> None:
    rig = Rig()
    for number in range(PAIRS_MAX + 5):
        rig.record.read("User:alice", f"t{number}", 1)
    rig.record.tell()
    lines = rig.lines()
    assert len(lines) == PAIRS_MAX + 1
    assert (lines[-1]["topic"], lines[-1]["read_bytes"]) == (OTHERS, 5)


def test_no_client_can_set_the_level_of_the_record() -> None:
    rig = Rig()
    logging.getLogger("strandline").setLevel(logging.CRITICAL)
    try:
        rig.record.logged_in(LOGIN)
    finally:
        logging.getLogger("strandline").setLevel(logging.NOTSET)
    assert len(rig.lines()) == 1

"""Addresses and settings of a cluster, as people type them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from strandline.broker.tools.client.connection import connection_of, failure_of, split_address
from strandline.broker.tools.client.failures import WrongUse


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("broker:9093", ("broker", 9093)),
        ("broker", ("broker", 9092)),
        ("[::1]:9", ("::1", 9)),
        ("[::1]", ("::1", 9092)),
        ("PLAINTEXT://broker:1", ("broker", 1)),
    ],
)
def test_addresses_are_read_as_clients_read_them(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "http://a:9092",
        "https://a",
        "kafka://a:1",
        "",
        ":1",
        "a:b",
        "a:0",
        "a:65536",
        "a..b:1",
        f"{'a' * 64}.org:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(WrongUse):
        split_address(address)


def test_settings_of_the_command_line_win_over_the_file(tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "client.properties"  # type: ignore[operator]
    file.write_text("# a comment\n\nsasl.username = me\nclient.id=a\n")
    connection = connection_of("b:1", ["client.id=b"], file)
    assert connection.client_settings(group_id="g") == {
        "bootstrap.servers": "b:1",
        "group.id": "g",
        "sasl.username": "me",
        "client.id": "b",
    }


def test_an_address_of_the_web_is_told_what_is_one_of_a_broker() -> None:
    with pytest.raises(WrongUse, match="write HOST:PORT") as refused:
        split_address("http://127.0.0.1:9404")
    assert "strandline status --metrics" in str(refused.value)


def test_a_refusal_is_told_by_what_was_refused_and_not_by_its_code_alone() -> None:
    collides = KafkaError(17, "Topic 'a_b' collides with existing topic: a.b")
    assert "choose another one" in str(failure_of(collides, "cannot create topic 'a_b'"))
    illegal = KafkaError(17, "Topic name is invalid: '' is not allowed")
    assert "names are 1 to 249" in str(failure_of(illegal, "cannot create topic ''"))
    assert "needs a key" in str(failure_of(KafkaError(87), "could not write"))


@pytest.mark.parametrize(
    ("code", "what", "right"),
    [
        (29, "cannot create topic 'a'", "create of the topic"),
        (29, "could not write 1 of 1 record to a", "write of the topic"),
        (29, "cannot read a-0 after 0 records", "read of the topic"),
        (30, "cannot describe group 'g'", "describe of the group"),
        (31, "cannot read the configuration of broker 1", "describe-configs of the cluster"),
        (31, "cannot create the ACL", "alter of the cluster"),
    ],
)
def test_who_lacks_a_right_is_told_which_one(code: int, what: str, right: str) -> None:
    told = failure_of(KafkaError(code), what)
    assert f"no right to it: {right}" in str(told)
    assert "strandline acl add" in str(told)

"""Users in Kafka's `sasl.jaas.config`."""

from __future__ import annotations

import pytest

from strandline.broker.security.jaas import check_scram, plain_passwords
from strandline.storage.errors import InvalidConfig


def test_users_of_plain_are_read_as_kafka_writes_them() -> None:
    text = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        ' username="admin" password="x" user_admin="x"\n'
        """ user_alice="with \\"quotes\\" and ;" user_bob='single' user_carol=bare ;"""
    )
    assert plain_passwords(text) == {
        "admin": "x",
        "alice": 'with "quotes" and ;',
        "bob": "single",
        "carol": "bare",
    }
    check_scram("org.apache.kafka.common.security.scram.ScramLoginModule required;")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PlainLoginModule",
        "org.apache.kafka.common.security.plain.PlainLoginModule maybe user_a=b;",
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="topsecret',
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="topsecret"',
        'org.apache.kafka.common.security.scram.ScramLoginModule required user_a="topsecret";',
    ],
)
def test_what_is_no_such_configuration_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        plain_passwords(text)
    assert "topsecret" not in str(refused.value)

"""Names of topics are taken and refused as in Kafka."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.controller_messages import NewTopic
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.cluster.controlled import (
    create,
    refusal,
    with_topic,
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed"
            " length 249",
        ),
        (
            "a b",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII"
            " alphanumerics, '.', '_' and '-'",
        ),
    ],
)
def test_an_illegal_name_is_refused_in_kafkas_words(name: str, message: str) -> None:
    assert refusal(NewTopic(name=name)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, message)


@pytest.mark.parametrize("name", ["a\n", "ä", "a/b", "a\x00", "a:b"])
def test_no_character_that_a_folder_name_could_stumble_over_gets_through(name: str) -> None:
    assert refusal(NewTopic(name=name))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["x" * 249, "a.b-C_9", "...", "__consumer_offsets"])
def test_every_legal_name_is_accepted(name: str) -> None:
    assert create(NewTopic(name=name)).results[0].error_code == ErrorCode.NONE


def test_names_that_metrics_cannot_tell_apart_collide() -> None:
    assert refusal(NewTopic(name="a.b"), image=with_topic("a_b")) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a.b' collides with existing topic: a_b",
    )
    both = create(NewTopic(name="a.b"), NewTopic(name="a_b"))
    assert [result.error_code for result in both.results] == [0, 17]

"""Every key that can be altered while the broker runs has an answer: what becomes of what waits.

The walk goes over the tables of keys themselves, so a new key cannot be without an answer. Each
answer names the test that shows it, or says why nothing waits.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from strandline.broker.config.group_configs import GROUP_CONFIGS
from strandline.broker.config.table import BROKER_CONFIGS, TopicDefaultKey
from strandline.storage.config.log_config import TOPIC_CONFIGS

TESTS = Path(__file__).parent


class Effect(Enum):
    """What an alteration does to what waits, is open or is kept."""

    # A wait keeps since when, and asks for the limit each time that it looks.
    ASKED = "asked for at each look, which comes by itself"
    WOKEN = "what sleeps is woken, and asks again"
    TOLD = "what runs or is kept is changed at once"
    # The answer to a fault that needs none: what was begun has the value of its beginning.
    NEXT = "what begins after it has the new value; what is under way or stored keeps its own"
    NONE = "without effect here"


@dataclass(frozen=True)
class Answer:
    """`shown_by` is FILE::TEST below tests; None: nothing waits, as `why` says."""

    effect: Effect
    shown_by: str | None = None
    why: str = ""


def asked(shown_by: str) -> Answer:
    return Answer(Effect.ASKED, shown_by)


def woken(shown_by: str) -> Answer:
    return Answer(Effect.WOKEN, shown_by)


def told(shown_by: str) -> Answer:
    return Answer(Effect.TOLD, shown_by)


def next_one(why: str, shown_by: str | None = None) -> Answer:
    return Answer(Effect.NEXT, shown_by, why)


def without_effect(why: str) -> Answer:
    return Answer(Effect.NONE, None, why)


_SYSTEM = "system/admin/test_altered_while_something_waits.py"
_TOPICS = "unit/storage/tiering/test_altered_topics.py"
_WAIT = f"{_TOPICS}::test_a_wait_goes_by_the_limit_of_the_moment"
_CLEANED = f"{_TOPICS}::test_a_log_that_waits_for_the_cleaner_goes_by_the_properties_of_the_moment"
_OPEN_SEGMENT = "unit/storage/tiering/copy/test_open_segment.py"
_MANAGER = "unit/storage/tiering/manager/test_manager.py"
_POOL = "unit/storage/concurrency/test_resizable_pool.py"
_QUOTA = "unit/storage/tiering/policy/test_quota.py"
_PACE = "unit/broker/quotas/test_cold_pace.py"
_CLEANER = "unit/storage/local/cleaner"
_LOG = "unit/storage/local/log"
_BROKER = "system/admin/test_broker_configs.py"
_FLUSH = f"{_LOG}/test_rolling.py::test_what_waits_for_a_flush_goes_by_the_limits_of_the_moment"
_THROTTLED = "unit/broker/replication/test_throttles.py"
_RAISED = (
    f"{_THROTTLED}::test_one_that_is_not_in_sync_waits_for_the_rate_and_goes_on_when_it_is_raised"
)
_UNTHROTTLED = f"{_THROTTLED}::test_it_goes_on_when_its_topic_is_not_throttled_any_more"
_DISABLE = "system/tiers/archive/test_disable.py"

_ONE_REPLICA = without_effect("a single broker does not replicate")
_AT_APPEND = next_one("a batch is judged and stored by the value at its append, and stays as it is")
_AT_COPY = next_one("an object has the value at its upload, and stays as it is")
_REQUEST = next_one("a request that waits keeps the limit that it came with, as in Kafka")
_CLEANING = next_one("a cleaning keeps the memory that it began with")
_IMAGE = next_one("each request is judged by itself")

BROKER: Mapping[str, Answer] = {
    "max.connections": told(
        "unit/broker/network/test_server.py::test_connections_above_a_lowered_limit_are_closed_the_quietest_first"
    ),
    "max.connections.per.ip": asked(
        f"{_BROKER}::test_connections_from_one_address_are_limited_but_for_overrides"
    ),
    "max.connections.per.ip.overrides": asked(
        f"{_BROKER}::test_connections_from_one_address_are_limited_but_for_overrides"
    ),
    "max.connection.creation.rate": next_one(
        "one client of a listener waits for its turn, a second at most"
    ),
    "producer.id.expiration.ms": asked(
        "unit/broker/server/upkeep/test_background.py::test_idle_producers_go_by_the_limit_of_the_moment"
    ),
    "transaction.partition.verification.enable": _IMAGE,
    "log.cleaner.io.max.bytes.per.second": told(
        f"{_CLEANER}/test_process.py::test_a_raised_rate_holds_for_the_cleaning_that_runs"
    ),
    "log.cleaner.dedupe.buffer.size": next_one(
        _CLEANING.why, shown_by=f"{_MANAGER}::test_altered_settings_reach_every_worker"
    ),
    "log.cleaner.io.buffer.size": _CLEANING,
    "log.cleaner.io.buffer.load.factor": _CLEANING,
    "log.cleaner.backoff.ms": woken(
        f"{_SYSTEM}::test_the_cleaner_wakes_when_its_back_off_is_lowered"
    ),
    "leader.replication.throttled.rate": asked(_RAISED),
    "follower.replication.throttled.rate": asked(_RAISED),
    "replica.alter.log.dirs.io.max.bytes.per.second": asked(
        "unit/storage/local/log_dirs/test_copy_pace.py"
        "::test_another_rate_holds_from_the_next_look_on"
    ),
    "remote.log.manager.copier.thread.pool.size": told(
        f"{_MANAGER}::test_altered_settings_reach_every_worker"
    ),
    "remote.log.manager.expiration.thread.pool.size": told(
        f"{_POOL}::test_a_pool_that_grows_starts_what_waits_at_once"
    ),
    "remote.log.manager.copy.max.bytes.per.second": asked(
        f"{_QUOTA}::test_an_altered_limit_counts_what_was_sent_before"
    ),
    "remote.log.manager.fetch.max.bytes.per.second": asked(
        f"{_QUOTA}::test_an_altered_limit_counts_what_was_sent_before"
    ),
    "remote.log.reader.threads": told(
        f"{_POOL}::test_a_pool_that_shrinks_ends_what_runs_and_holds_the_new_bound"
    ),
    "remote.log.index.file.cache.total.size.bytes": told(
        "unit/storage/remote/segment/test_index_cache.py"
        "::test_a_lower_bound_holds_at_once_and_a_higher_one_keeps_what_it_can"
    ),
    "remote.fetch.max.wait.ms": _REQUEST,
    "remote.list.offsets.request.timeout.ms": _REQUEST,
    "strandline.remote.fetch.yield.ms": asked(f"{_PACE}::test_a_lowered_setting_holds_at_once"),
    "strandline.remote.fetch.yield.floor.bytes.per.second": asked(
        f"{_PACE}::test_a_raised_floor_holds_at_the_next_tick"
    ),
}

TOPIC: Mapping[str, Answer] = {
    "cleanup.policy": asked(_CLEANED),
    "compression.type": _AT_APPEND,
    "compression.gzip.level": _AT_APPEND,
    "compression.lz4.level": _AT_APPEND,
    "compression.zstd.level": _AT_APPEND,
    "delete.retention.ms": next_one(
        "a tombstone keeps the horizon that its first cleaning wrote into it, as in Kafka"
    ),
    "file.delete.delay.ms": asked(
        f"{_CLEANER}/test_cleaner.py"
        "::test_files_that_wait_to_be_unlinked_go_by_the_delay_of_the_moment"
    ),
    "flush.messages": asked(_FLUSH),
    "flush.ms": asked(_FLUSH),
    "follower.replication.throttled.replicas": asked(_UNTHROTTLED),
    "index.interval.bytes": next_one(
        "an index stays as it was written",
        shown_by=f"{_LOG}/test_recovery_indexes.py"
        "::test_indexes_that_were_written_with_other_settings_are_believed",
    ),
    "leader.replication.throttled.replicas": asked(_UNTHROTTLED),
    "local.retention.bytes": asked(_WAIT),
    "local.retention.ms": asked(_WAIT),
    "max.compaction.lag.ms": asked(_CLEANED),
    "max.message.bytes": next_one(
        "a batch that is stored is no fault",
        shown_by=f"{_LOG}/test_recovery_indexes.py"
        "::test_indexes_that_were_written_with_other_settings_are_believed",
    ),
    "message.timestamp.after.max.ms": _AT_APPEND,
    "message.timestamp.before.max.ms": _AT_APPEND,
    "message.timestamp.type": _AT_APPEND,
    "min.cleanable.dirty.ratio": asked(_CLEANED),
    "min.compaction.lag.ms": asked(_CLEANED),
    "min.insync.replicas": _IMAGE,
    "preallocate": without_effect("no file is made larger than its records"),
    "remote.copy.lag.bytes": asked(_WAIT),
    "remote.copy.lag.ms": asked(_WAIT),
    "remote.log.copy.disable": asked(
        f"{_OPEN_SEGMENT}::test_nothing_more_is_uploaded_while_copying_is_disabled"
    ),
    "remote.log.delete.on.disable": told(
        f"{_DISABLE}::test_turned_off_tiering_takes_its_archive_along_and_can_be_turned_on_again"
    ),
    "remote.storage.enable": told(
        f"{_DISABLE}::test_turned_off_tiering_takes_its_archive_along_and_can_be_turned_on_again"
    ),
    "retention.bytes": asked(_WAIT),
    "retention.ms": asked(_WAIT),
    "segment.bytes": asked(
        f"{_LOG}/test_rolling.py::test_a_changed_segment_size_holds_for_the_active_segment"
    ),
    "segment.index.bytes": told(
        f"{_LOG}/test_rolling.py::test_a_changed_index_size_holds_for_the_active_segment"
    ),
    "segment.jitter.ms": told(_WAIT),
    "segment.ms": told(_WAIT),
    "strandline.remote.object.tags": _AT_COPY,
    "strandline.remote.storage.class": _AT_COPY,
    "strandline.remote.active.segment.upload.ms": woken(
        f"{_SYSTEM}::test_records_that_wait_are_uploaded_when_the_limit_of_their_topic_is_lowered"
    ),
    "strandline.remote.compression.type": _AT_COPY,
    "strandline.remote.compression.zstd.level": _AT_COPY,
    "unclean.leader.election.enable": _ONE_REPLICA,
}

_MEMBER = next_one("a member keeps the limit of its last heartbeat, as in Kafka: a minute at most")
GROUP: Mapping[str, Answer] = {
    "consumer.heartbeat.interval.ms": _MEMBER,
    "consumer.session.timeout.ms": _MEMBER,
}


@cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@pytest.mark.parametrize(
    ("answers", "keys"),
    [
        pytest.param(
            BROKER,
            {
                name
                for name, key in BROKER_CONFIGS.items()
                if key.dynamic and not isinstance(key, TopicDefaultKey)
            },
            id="broker",
        ),
        pytest.param(TOPIC, set(TOPIC_CONFIGS), id="topic"),
        pytest.param(GROUP, set(GROUP_CONFIGS), id="group"),
    ],
)
def test_each_key_that_can_be_altered_says_what_becomes_of_what_waits(
    answers: Mapping[str, Answer], keys: set[str]
) -> None:
    """A default of topics has the answer of its property: it goes the same way to the logs."""
    assert answers.keys() == keys
    for key, answer in answers.items():
        if answer.shown_by is None:
            assert answer.effect in (Effect.NEXT, Effect.NONE), key
            assert answer.why, key
            continue
        file, _, test = answer.shown_by.partition("::")
        assert test in functions_in(TESTS / file), key

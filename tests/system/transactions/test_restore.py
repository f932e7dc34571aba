"""The disk is lost in the middle of transactions: the bucket alone has what was committed."""

from __future__ import annotations

import resource

import pytest

from strandline.broker.coordination.archive.state_archive import read_group_state
from strandline.broker.coordination.transactions.records import decode_transaction
from strandline.broker.protocol.formats.transaction_log import decode_key
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.spark_lake import scan
from strandline.storage.remote.keys import TRANSACTIONS_PREFIX
from tests.support.broker import eventually
from tests.support.heavy import heavy
from tests.support.wire import WireClient
from tests.system.calls import create_topic, fetch
from tests.system.group_calls import commit, committed
from tests.system.tiers.conftest import MakeBroker, archive, make_broker
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import TIERED, WAIT_S, Archive
from tests.system.transactions.admin_calls import describe
from tests.system.transactions.committed import committed_values, is_stable
from tests.system.transactions.going_on import write_on
from tests.system.transactions.wire_producer import WireProducer

__all__ = ["archive", "make_broker"]

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "t"
# The largest file on a disk that is full.
FULL_AT = 40_000
METADATA = "m" * 4000
GROUP = "g"
SETTINGS = {
    "strandline.remote.groups.upload.ms": "100",
    "strandline.remote.active.segment.upload.ms": "200",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "1",
}


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_restore_commits_what_was_committed_and_aborts_what_was_open(
    make_broker: MakeBroker, archive: Archive, version: int
) -> None:
    broker = make_broker(settings=SETTINGS)
    broker.start()
    with WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, TIERED)
        busy = WireProducer(client, "busy", version=version)
        busy.begin()
        busy.send(TOPIC, b"kept")
        assert busy.send_offset(GROUP, TOPIC, 5) is ErrorCode.NONE
        assert busy.commit() is ErrorCode.NONE
        busy.send(TOPIC, b"aborted")
        assert busy.abort() is ErrorCode.NONE
        zombie = WireProducer(client, "zombie", version=version)
        zombie.begin()
        zombie.send(TOPIC, b"open")
        assert zombie.send_offset(GROUP, TOPIC, 9) is ErrorCode.NONE
        end_offset = fetch(client, TOPIC, 0).high_watermark
        eventually(lambda: archive.tail_end_offset(TOPIC) == end_offset, timeout_s=WAIT_S)
        for prefix, text in (("transactions/", b"zombie"), ("groups/", TOPIC.encode())):
            eventually(lambda p=prefix, t=text: has(archive, p, t), timeout_s=WAIT_S)
    broker.kill()
    restored = make_broker(name="restored", settings=SETTINGS)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    with WireClient(restored.port) as client:
        eventually(lambda: is_stable_and_shows(client, [b"kept"]), timeout_s=WAIT_S)
        assert committed(client, GROUP, TOPIC) == 5
        zombie.client = busy.client = client
        refused = ErrorCode.PRODUCER_FENCED
        eventually(lambda: zombie.commit() is refused, timeout_s=WAIT_S)
        # So is a producer without an open transaction: another one may have begun meanwhile.
        assert busy.try_send(TOPIC, b"lost") is not ErrorCode.NONE
        write_on(busy, TOPIC, [b"later"], refused_max=1)
        zombie.begin()
        zombie.send(TOPIC, b"reborn")
        assert zombie.commit() is ErrorCode.NONE
        assert committed_values(client, TOPIC) == [b"kept", b"later", b"reborn"]


@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.heavy
def test_offsets_of_a_transaction_are_restored_with_what_it_was_about_to_come_to(
    make_broker: MakeBroker, archive: Archive, version: int
) -> None:
    """The disk is full, so decided transactions have no marker yet; then it is lost."""
    broker = make_broker(settings={**SETTINGS, "log.roll.ms": str(10**12)})
    broker.start()
    ends = {"commits": True, "aborts": False}
    with WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, TIERED)
        producers = {name: WireProducer(client, name, version=version) for name in (*ends, "open")}
        for offset, (name, producer) in enumerate(producers.items(), 1):
            producer.begin()
            producer.send(TOPIC, name.encode() + b"v" * FULL_AT)
            assert commit(client, f"of-{name}", {(TOPIC, 0): 0}, metadata=METADATA) == [0]
            assert producer.send_offset(f"of-{name}", TOPIC, offset) is ErrorCode.NONE
        # Longer than the full disk lets any file become: no marker finds room there.
        for number in range(FULL_AT // len(METADATA)):
            assert commit(client, f"other-{number}", {(TOPIC, 0): 0}, metadata=METADATA) == [0]
        limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (FULL_AT, limits[1]))
        for name, is_commit in ends.items():
            assert producers[name].end(is_commit=is_commit) is ErrorCode.NONE
        for name, state in (("commits", "PrepareCommit"), ("aborts", "PrepareAbort")):
            assert describe(client, name).transaction_state == state
        end_offset = fetch(client, TOPIC, 0).high_watermark
        eventually(lambda: archive.tail_end_offset(TOPIC) == end_offset, timeout_s=WAIT_S)
        eventually(lambda: has_prepared(archive) == {"commits", "aborts"}, timeout_s=WAIT_S)
        eventually(lambda: has_pending(archive) == 3, timeout_s=WAIT_S)
    broker.kill()
    restored = make_broker(name="restored", settings=SETTINGS)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    with WireClient(restored.port) as client:
        eventually(lambda: is_stable_and_shows(client, [b"commits"]), timeout_s=WAIT_S)
        found = {name: committed(client, f"of-{name}", TOPIC) for name in producers}
        assert found == {"commits": 1, "aborts": 0, "open": 0}


@pytest.mark.parametrize("goes_on", [True, heavy(False)])
@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.heavy
def test_what_is_committed_after_a_restore_from_an_old_snapshot_is_there_once(
    make_broker: MakeBroker, archive: Archive, version: int, goes_on: bool
) -> None:
    """The archived records are newer than the transactional ids, or these are not there at all."""
    settings = {**SETTINGS, "strandline.remote.groups.upload.ms": "3600000"}
    broker = make_broker(settings=settings)
    broker.start()
    before = [b"before"]
    with WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, TIERED)
        known = WireProducer(client, "known", version=version)
        known.begin()
        known.send(TOPIC, b"before")
        assert known.commit() is ErrorCode.NONE
    # The last snapshot: that of a clean stop.
    broker.stop()
    broker.start()
    with WireClient(broker.port) as client:
        known.client = client
        unknown = WireProducer(client, "unknown", version=version)
        unknown.begin()
        for number in range(5):
            for producer in (known, unknown):
                if version == 1:
                    producer.begin()
                value = f"{producer.transactional_id}-{number}".encode()
                write_on(producer, TOPIC, [value], refused_max=0)
                before.append(value)
        # Its epoch is in the archive, and the end of its transaction is not.
        known.send(TOPIC, b"open")
        end_offset = fetch(client, TOPIC, 0).high_watermark
        eventually(lambda: archive.tail_end_offset(TOPIC) == end_offset, timeout_s=WAIT_S)
    broker.kill()
    restored = make_broker(name="restored", settings=settings)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    with WireClient(restored.port) as client:
        eventually(lambda: is_stable(client, TOPIC), timeout_s=WAIT_S)
        assert committed_values(client, TOPIC) == before
        old_ids = {known.producer_id, unknown.producer_id}
        for old in (known, unknown):
            name = old.transactional_id
            producer = old if goes_on else WireProducer(client, name, version=version)
            if goes_on:
                producer.client = client
            else:
                producer.begin()
            after = [f"{name}-after-{number}".encode() for number in range(8)]
            write_on(producer, TOPIC, after, refused_max=1 if goes_on else 0)
            assert producer.producer_id not in old_ids
            before += after
        assert committed_values(client, TOPIC) == before


@pytest.mark.parametrize("is_commit", [True, heavy(False)])
@pytest.mark.parametrize("version", [heavy(1), 2])
def test_a_transaction_ends_as_the_archive_has_it_although_its_marker_is_lost(
    make_broker: MakeBroker, archive: Archive, version: int, is_commit: bool
) -> None:
    """Its records are in a closed segment, its marker is in the open one; no snapshot has it."""
    settings = {
        **SETTINGS,
        "strandline.remote.groups.upload.ms": "3600000",
        "strandline.remote.active.segment.upload.ms": "-1",
    }
    broker = make_broker(settings=settings)
    broker.start()
    with WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, {**TIERED, "segment.bytes": str(2**20)})
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        producer.send(TOPIC, b"decided".ljust(2**20 - 120, b"v"))
        # The marker finds no room in this segment.
        assert producer.end(is_commit=is_commit) is ErrorCode.NONE
        eventually(lambda: archive.tail_end_offset(TOPIC) == 1, timeout_s=WAIT_S)
    broker.kill()
    expected = [b"decided"] if is_commit else []
    options = {"isolationLevel": "read_committed", "s3.endpoint.url": archive.bucket.endpoint_url}
    rows = scan(archive.bucket.url, TOPIC, columns=["value"], options=options).read_all()
    assert [value[:7] for value in rows["value"].to_pylist()] == expected
    restored = make_broker(name="restored", settings=settings)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    with WireClient(restored.port) as client:
        eventually(lambda: is_stable_and_shows(client, expected), timeout_s=WAIT_S)


def has_prepared(archive: Archive) -> set[str]:
    """The transactional ids in the bucket that are about to end."""
    return {
        transaction.transactional_id
        for number in range(3)
        for record in read_group_state(archive.store, number, TRANSACTIONS_PREFIX) or ()
        if (transaction := decode_transaction(decode_key(record.key) or "", record.value))
        and transaction.state.is_ending
    }


def has_pending(archive: Archive) -> int:
    """How many transactions have offsets in the bucket that do not count yet."""
    state = read_group_state(archive.store, 0)
    return 0 if state is None else len(list(state.pending))


def has(archive: Archive, prefix: str, text: bytes) -> bool:
    """Whether an object below the prefix contains the text."""
    return any(text in archive.store.get(key) for key in archive.below(prefix))


def is_stable_and_shows(client: WireClient, wanted: list[bytes]) -> bool:
    """Whether all is decided, as wanted; nothing else may ever be shown on the way there."""
    # Before the look at the values: what is decided then does not change any more.
    decided = is_stable(client, TOPIC)
    seen = [value[:7] for value in committed_values(client, TOPIC)]
    assert seen == wanted[: len(seen)], seen
    assert not decided or seen == wanted, seen
    return decided

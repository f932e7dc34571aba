"""The object store is away for a while: the broker goes on, keeps everything, and says why."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.support.ministack import ministack as ministack_server
from tests.system.soak.patience import PATIENCE
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    LogClient,
    end_of,
    make_batches,
    timestamp_of,
    with_epoch,
)
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "outage"
BEFORE = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
DURING = make_batches(base_offset=end_of(BEFORE), size_bytes=5 * SEGMENT_BYTES // 2)
END = end_of(DURING)
# In the middle of the first segment.
START = 50
KAFKA_STORAGE_ERROR = 56
FAILS = "tiering does not succeed"
# What a client may have to wait while the store hangs; requests to the store take ten seconds.
# Both are counted in turns that this process had: a busy machine is no store that holds up anybody.
PROMPT_S = 4.0
# A stopping broker waits for no such request.
STOP_S_MAX = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A store that can be taken away and brought back."""

    bucket: S3Bucket
    endpoint_url: str
    begin: Callable[[], object]
    end: Callable[[], object]


@pytest.fixture(params=[heavy("answers 503"), "was killed"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    """Two ways to be away; a third is in the tests that start without a store."""
    if request.param == "was killed":
        server = ministack_server(tmp_path / "s3.log", data_folder=tmp_path / "s3")
        with server:
            bucket = make_bucket(server.endpoint_url)
            yield Outage(
                bucket=bucket,
                endpoint_url=server.endpoint_url,
                begin=lambda: server.stop(kill=True),
                end=server.start,
            )
        return
    bucket = request.getfixturevalue("s3_bucket")
    proxy = request.getfixturevalue("fault_proxy")
    rule = Rule(action=Action.STATUS, status=503, code="SlowDown", times=-1)
    yield Outage(
        bucket=bucket,
        endpoint_url=proxy.endpoint_url,
        begin=lambda: proxy.add(rule),
        end=proxy.clear,
    )


class EagerConsumer:
    """A librdkafka consumer that wants everything from offset 0 on, and keeps asking."""

    def __init__(self, broker: TieredBroker) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.seen: list[tuple[int | None, bytes | None]] = []

    def poll(self) -> EagerConsumer:
        """Takes what has come; fails for an error."""
        for message in self._consumer.consume(10_000, 0.1):
            assert message.error() is None, message.error()
            key = message.key()
            assert not isinstance(key, str)
            self.seen.append((message.offset(), key))
        return self

    def close(self) -> None:
        self._consumer.close()


def archive_and_free(broker: TieredBroker, client: LogClient) -> uuid.UUID:
    """A new topic whose closed segments are in the archive alone; its id."""
    topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
    client.produce(BEFORE)
    broker.wait_until_archived(client)
    broker.wait_until_freed(client)
    return topic_id


def watch_cold_reads_wait(client: LogClient, start: int = 0) -> None:
    """For two seconds: every cold read is answered in time, with nothing, and without an error."""
    give_up_s = time.monotonic() + 2
    while time.monotonic() < give_up_s:
        answer = client.fetch(start, wait_ms=500)
        assert (answer.error_code, answer.records) == (0, b"")
        assert answer.log_start_offset == start


def check_says_why_once(broker: TieredBroker, *texts: str) -> None:
    """One line for each thing that does not work, not one per attempt."""
    # time WARNING logger event text [activity=copy subject=outage-0] field=value ...
    event = re.compile(r"\S+ \S+ \S+ (.*?)( activity=\S+ subject=\S+)? \w+=")
    # What lasts for more than a minute is told again, with how often it was not.
    told = (line for line in broker.warnings() if " not_logged=" not in line)
    events = Counter(found.groups() for line in told if (found := event.match(line)))
    for text in texts:
        assert any(text in event for event, _ in events), events
    assert max(events.values()) == 1, events


def test_the_broker_goes_on_while_the_store_is_away_and_archives_by_itself_afterwards(
    tmp_path: Path, outage: Outage
) -> None:
    broker = TieredBroker(tmp_path / "broker", outage.bucket, endpoint_url=outage.endpoint_url)
    archive = Archive.open(outage.bucket)
    with broker, broker.client(TOPIC) as client, broker.client("deleted-meanwhile") as doomed:
        doomed_id = archive_and_free(broker, doomed)
        archive_and_free(broker, client)
        local_start = client.offset_at(EARLIEST_LOCAL)
        consumer = EagerConsumer(broker)

        outage.begin()
        client.produce(DURING)
        doomed.delete_topic()
        with broker.client("made-meanwhile") as other:
            other.create_topic(TIERED)
            other.produce(BEFORE[:1])
        hot = [batch for batch in BEFORE + DURING if end_of([batch]) > local_start]
        assert client.read(local_start, END) == hot
        watch_cold_reads_wait(client)
        consumer.poll()
        assert consumer.seen == []
        assert client.list_offset(timestamp_of(1)).error_code == KAFKA_STORAGE_ERROR
        assert client.offset_at(LATEST_TIERED) == local_start - 1
        eventually(lambda: broker.warnings(FAILS), timeout_s=WAIT_S)
        # After some seconds in vain it is told that there are records.
        eventually(
            lambda: client.fetch(0, wait_ms=500).error_code == KAFKA_STORAGE_ERROR,
            timeout_s=WAIT_S,
        )
        # Nothing that is not archived was freed.
        assert int(broker.segment_files(TOPIC)[0].stem) == local_start
        assert client.read(local_start, END) == hot
        check_says_why_once(broker, FAILS, "remote tier is unreachable", "cold read failed")

        outage.end()
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, END) == BEFORE + DURING
        assert client.offset_at(timestamp_of(1)) == 1
        eventually(lambda: len(consumer.poll().seen) >= END, timeout_s=WAIT_S)
        assert consumer.seen == [(offset, b"key-%d" % offset) for offset in range(END)]
        eventually(lambda: archive.keys(doomed.topic, doomed_id) == [], timeout_s=WAIT_S)
        archive.wait_until_tidy()
        assert "remote tier is back" in broker.log_text()
        consumer.close()


@pytest.mark.heavy
def test_a_broker_starts_without_its_store_and_catches_up(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client(TOPIC) as client:
        archive_and_free(broker, client)
        local_start = client.offset_at(EARLIEST_LOCAL)
        fault_proxy.go_away()
        # What was answered holds, though the archive cannot be told: nor is there a clean stop.
        assert client.delete_records(START) == START
    broker.kill()
    # To a slow machine's first start the store may have been away as well.
    broker.log_path.unlink()
    broker.start()
    with broker.client(TOPIC) as client:
        # A broker that was started again leads under the next epoch, and stamps it.
        during = [with_epoch(batch, 1) for batch in DURING]
        client.produce(during)
        hot = [batch for batch in BEFORE + during if end_of([batch]) > local_start]
        assert client.read(local_start, END) == hot
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (START, END)
        watch_cold_reads_wait(client, START)
        assert int(broker.segment_files(TOPIC)[0].stem) == local_start
        # By now the store has been asked several times.
        check_says_why_once(broker, "remote tier cannot be reached", "cold read failed")
        fault_proxy.come_back()
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        kept = [batch for batch in BEFORE + during if end_of([batch]) > START]
        assert client.read(START, END) == kept
        assert broker.wait_until_deleted_below(client, archive).log_start_offset == START
    archive.wait_until_tidy()


def test_a_store_that_never_answers_holds_up_nobody(
    make_broker: MakeBroker, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    # The seconds that count are the store's: `make test-slow-disk` loads late syncs by it.
    broker.environment["LD_PRELOAD"] = ""
    broker.start()
    with broker.client(TOPIC) as client:
        archive_and_free(broker, client)
        fault_proxy.add(Rule(action=Action.HANG, times=-1))
        check_serves_promptly(broker, client, DURING)
    began_s = PATIENCE.now_s()
    assert broker.stop() == 0
    assert PATIENCE.now_s() - began_s < STOP_S_MAX
    # The ready line comes all the same, and everything that is local works.
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.offset_at(EARLIEST) == 0
        check_serves_promptly(broker, client, [])


def check_serves_promptly(
    broker: TieredBroker, client: LogClient, batches: Sequence[bytes]
) -> None:
    """Producing, hot reads, creating topics and refusing cold reads take no longer than ever."""
    end = client.offset_at(LATEST)
    calls: list[Callable[[], object]] = [
        lambda: client.produce(batches),
        lambda: client.fetch(0),
        lambda: client.read(end - 1, client.offset_at(LATEST)),
        lambda: create_and_produce(broker),
    ]
    for call in calls:
        began_s = PATIENCE.now_s()
        call()
        assert PATIENCE.now_s() - began_s < PROMPT_S


def create_and_produce(broker: TieredBroker) -> None:
    with broker.client(f"made-{uuid.uuid4().hex}") as other:
        other.create_topic(TIERED)
        other.produce(make_batches(size_bytes=1))


def test_lost_answers_and_damaged_bytes_leave_an_archive_without_gaps_doubles_or_damage(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    faults = [
        Rule(action=Action.RESET_AFTER, method="PUT", path=r"manifest\.json", times=1),
        Rule(action=Action.RESET_AFTER, method="PUT", path=r"manifest\.json", skip=2, times=2),
        Rule(action=Action.RESET_AFTER, method="PUT", path=r"topic\.json"),
        Rule(action=Action.RESET_AFTER, method="PUT", path=r"\.log", skip=1),
        Rule(action=Action.CORRUPT_UPLOAD, method="PUT", path=r"\.log", skip=2, at_byte=5_000),
        Rule(action=Action.RESET_BEFORE, method="PUT", path=r"\.meta"),
        Rule(action=Action.RESET_AFTER, method="PUT", path=r"\.meta", skip=1),
        Rule(action=Action.STATUS, method="HEAD", path=r"\.log|\.meta", skip=1, times=2),
        Rule(action=Action.CORRUPT, method="GET", path=r"\.log", at_byte=50_000),
        Rule(action=Action.TRUNCATE, method="GET", path=r"\.log", skip=1, at_byte=50_000),
        Rule(action=Action.RESET_AFTER, method="GET", path=r"\.log", skip=2),
    ]
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    for fault in faults:
        fault_proxy.add(fault)
    batches = BEFORE + DURING
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(batches)
        broker.wait_until_archived(client)
        local_start = broker.wait_until_freed(client)
        assert client.read(0, END) == batches
    assert [rule for rule in faults if not rule.hit_count] == []
    entries = archive.segments(TOPIC)
    assert (entries[0].base_offset, entries[-1].end_offset) == (0, local_start)
    archive.check_uploads(TOPIC)

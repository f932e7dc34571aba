"""The end of a soak: nothing fails any more, nobody writes, and everything has to come right.

1 settle     all closed segments are archived, what is below the log start is gone
2 read       three client libraries read every partition from its log start, the groups their
             last records: every acknowledged record once, in order
3 follow     the replica has what the bucket has, and a client reads it there record by record
4 tidy       orphans are gone once their grace time is over, deleted topics too; but not what a
             machine uploaded of records that were lost with it
5 verify     `strandline archive verify --deep`, and the bucket against its manifests
6 scan       the lake reads every archived record, and no other, from the bucket alone
7 transact   consumer, replica, lake, Spark and a restored broker have the same committed records
8 stop       SIGTERM ends broker and replica with 0; their logs tell of no fault of ours
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from strandline.spark_lake import scan
from strandline.storage.remote.manifest.topic_info import list_topics
from strandline.storage.tiering.audit.orphans import OrphanReason
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import EARLIEST, LATEST, offset_at
from tests.system.soak.clients import Reader
from tests.system.soak.libraries import LIBRARIES, Row
from tests.system.soak.model import PartitionModel
from tests.system.soak.story import SETTLE_S_MAX, Story
from tests.system.soak.table import TableModel
from tests.system.soak.world import ORPHAN_GRACE_MS, World
from tests.system.tiers.tiered_broker import REGION

READ_S_MAX = 180.0
# The manager looks after its house every fifteen seconds, and the machine may be slow.
TIDY_S_MAX = ORPHAN_GRACE_MS / 1000 + 60.0
EARLIEST_PENDING_UPLOAD = -6


def heal(world: World, story: Story, say: Callable[[str], None], *, with_spark: bool) -> None:
    """All steps; what is wrong is among the violations."""
    world.set_rules([])
    world.ensure_running()
    say("waiting for the readers")
    check_reading(world, story)
    story.end()
    world.settle_configs()
    say("settling")
    for model in (*world.models.values(), *world.transactions.partitions):
        check_settled(world, model)
    say("reading everything")
    read_everything(world, story)
    story.stop_members()
    say("reading from the replica")
    read_replica(world, story)
    say("waiting for orphans to go")
    check_tidy(world)
    say("verifying")
    options = ["--remote", world.bucket.url, "--endpoint-url", world.bucket.endpoint_url]
    verified = world.run_command("archive verify", [*options, "--region", REGION, "--deep"])
    if verified.returncode:
        world.violations.add(f"archive verify: {verified.stdout}{verified.stderr}")
    say("scanning")
    scan_archive(world)
    say("reading transactions")
    story.transactions.check_settled(SETTLE_S_MAX, with_spark=with_spark)
    if not world.violations.texts:
        # What is wrong is kept as it is.
        say("restoring")
        story.transactions.check_restored(SETTLE_S_MAX)
    world.stop()
    wrong = world.replica.end(killed=False)
    if wrong:
        world.violations.add(wrong)
    for process in (world.broker, world.replica):
        check_log(world, process)


def within(seconds: float, check: Callable[[], str]) -> str:
    """Asks `check` until it has nothing to say, or has said the same for so long; what it said."""
    since_s, before = time.monotonic(), ""
    while left := check():
        if left != before:
            # It gets on: how fast is up to the machine.
            since_s, before = time.monotonic(), left
        if time.monotonic() - since_s > seconds:
            break
        time.sleep(0.2)
    return left


def check_reading(world: World, story: Story) -> None:
    """A life may be over before each reader had a turn: each reads something while others write."""
    idle = within(
        SETTLE_S_MAX,
        lambda: ", ".join(reader.name for reader in story.readers if not reader.record_count),
    )
    if idle:
        world.violations.add(f"read nothing: {idle}")


def check_settled(world: World, model: PartitionModel) -> None:
    def unsettled() -> str:
        start = offset_of(world, model, EARLIEST)
        pending = offset_of(world, model, EARLIEST_PENDING_UPLOAD)
        files = world.broker.segment_files(model.topic, model.number)
        if not files:
            return "it is in no folder"
        active = int(files[-1].stem)
        if pending != active:
            return f"archived to {pending}, the active segment begins at {active}"
        manifest = world.archive.manifest(model.topic, model.number)
        if manifest is None:
            return "" if active == start else "there is no manifest"
        if manifest.deleting or manifest.log_start_offset != start:
            return (
                f"{len(manifest.deleting)} deletions are under way, the bucket begins at"
                f" {manifest.log_start_offset}, the log at {start}"
            )
        return ""

    left = within(SETTLE_S_MAX, unsettled)
    if left:
        world.violations.add(f"{model.name} does not settle: {left}")


def offset_of(world: World, model: PartitionModel, timestamp_ms: int) -> int:
    return world.ask(
        f"offset of {model.name}",
        lambda client: offset_at(client, model.topic, timestamp_ms, partition=model.number).offset,
    )


def read_everything(world: World, story: Story) -> None:
    readers = [
        Reader(
            library,
            world.broker.bootstrap,
            list(world.models.values()),
            world.violations,
            seed=0,
            once=True,
        )
        for library in LIBRARIES
    ]
    for reader in readers:
        reader.start()
    for model in world.models.values():
        end = offset_of(world, model, LATEST)
        if end < model.acknowledged_end:
            world.violations.add(
                f"{model.name} ends at {end}, {model.acknowledged_end - 1} was acknowledged"
            )
        for group, progress in story.progress.items():
            if (model.topic, model.number) in story.grouped:
                left = within(READ_S_MAX, lambda p=progress, m=model, e=end: behind(p.end(m), e))
                if left:
                    world.violations.add(f"{group}: {model.name}: {left}")
    for reader in readers:
        unread = within(
            READ_S_MAX, lambda r=reader: "" if len(r.done) == len(world.models) else "unread"
        )
        reader.stop()
        story.readers.append(reader)
        if unread:
            world.violations.add(f"{reader.name} has only read {reader.done}")
    for model in world.models.values():
        model.check_read()


def behind(reached: int, end: int) -> str:
    return "" if reached >= end else f"came to {reached}, the log ends at {end}"


def check_tidy(world: World) -> None:
    archive = world.archive
    # Uploads of a lost disk that no manifest came to name; also of the probe's records.
    kept = {OrphanReason.OTHER_RECORDS} if world.is_disk_lost else set()

    def untidy() -> str:
        found = archive.compare()
        dead = [info.topic for info in list_topics(archive.store) if info.is_deleted]
        return "; ".join(
            [
                *(
                    f"orphan {o.key}: {o.reason.value}"
                    for o in found.orphans
                    if o.reason not in kept
                ),
                *(f"missing {key}" for key in found.missing_keys),
                *(f"unreadable {u.partition}: {u.reason}" for u in found.unreadable),
                *(f"{topic} is deleted and not gone" for topic in dead),
            ]
        )

    left = within(TIDY_S_MAX, untidy)
    if left:
        world.violations.add(f"the bucket is not what the manifests say: {left[:2000]}")


def read_replica(world: World, story: Story) -> None:
    models = list(world.models.values())

    def behind_at(model: PartitionModel) -> str:
        wanted = world.in_bucket(model)
        with WireClient(world.replica.port) as client:
            found = tuple(
                offset_at(client, model.topic, special, partition=model.number).offset
                for special in (EARLIEST, LATEST)
            )
        return "" if found == wanted else f"the replica has {found}, the bucket {wanted}"

    for model in models:
        left = within(SETTLE_S_MAX, lambda m=model: behind_at(m))
        if left:
            world.violations.add(f"{model.name}: {left}")
    reader = Reader(
        "kafka-python",
        world.replica.bootstrap,
        models,
        world.violations,
        seed=0,
        once=True,
        at_replica=True,
    )
    reader.start()
    unread = within(READ_S_MAX, lambda: "" if len(reader.done) == len(models) else "unread")
    reader.stop()
    story.readers.append(reader)
    if unread:
        world.violations.add(f"{reader.name} has only read {reader.done}")


def scan_archive(world: World) -> None:
    options = {"s3.endpoint.url": world.bucket.endpoint_url}
    columns = ["partition", "offset", "value", "key"]
    for topic in sorted({model.topic for model in world.models.values()}):
        rows = scan(world.bucket.url, topic, columns=columns, options=options).read_all()
        by_partition: dict[int, list[Row]] = defaultdict(list)
        for row in rows.to_pylist():
            by_partition[row["partition"]].append((row["offset"], row["value"], row["key"]))
        for model in world.of(topic):
            rows_here = by_partition.pop(model.number, [])
            check_scanned(world, model, sorted(rows_here, key=lambda row: row[0]))
        if by_partition:
            world.violations.add(f"lake: {topic} has partitions {sorted(by_partition)}")


def check_scanned(world: World, model: PartitionModel, rows: list[Row]) -> None:
    manifest = world.archive.manifest(model.topic, model.number)
    start = 0 if manifest is None else manifest.log_start_offset
    end = start if manifest is None else max(start, manifest.end_offset)
    reading = model.begin_pass(start, generation=model.generation, who="lake")
    is_table = isinstance(model, TableModel)
    if rows and rows[0][0] != start and not is_table:
        world.violations.add(f"lake: {model.name} begins at {rows[0][0]}, the log at {start}")
    for row in rows:
        reading.accept(*row)
    reading.finish(end)
    world.counts["records scanned by the lake"] += reading.count
    if is_table:
        world.counts["records that compaction took out of the archive"] += end - reading.count
    elif reading.next_offset != end:
        world.violations.add(
            f"lake: {model.name} ends at {reading.next_offset}, the archive at {end}"
        )


def check_log(world: World, process: BrokerProcess) -> None:
    text = process.log_text()
    if "Traceback" in text:
        position = text.index("Traceback")
        world.violations.add(
            f"the log of {process.folder.name}: {text[max(0, position - 500) : position + 2500]}"
        )

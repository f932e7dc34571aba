"""The transactions of a soak: who writes and reads them, a lost disk, and the last look at all."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.spark_session import make_session
from tests.support.wire import WireClient
from tests.system.calls import LATEST, offset_at
from tests.system.soak.model import PartitionModel
from tests.system.soak.transacted.model import CommittedPass
from tests.system.soak.transacted.processes import TransactionalWriter
from tests.system.soak.transacted.reading import CommittedReader, read_all, scan_all
from tests.system.soak.world import TRANSACTED, World
from tests.system.transactions.committed import READ_COMMITTED
from tests.system.transactions.readers import ENGINES, spark_values

IDS = 3
READ_UNCOMMITTED = 0


class TransactionScene:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.writers: list[TransactionalWriter] = []
        self.readers: list[CommittedReader] = []
        self.kill_count = self.zombie_count = 0
        self._world = world
        self._model = world.transactions
        # Of the bucket when the disk was lost.
        self._scanned: list[CommittedPass] = []
        self._writer_count = 0

    # --- clients -----------------------------------------------------------------------------

    def start_writing(self) -> None:
        world = self._world
        for number in range(IDS):
            self._writer_count += 1
            writer = TransactionalWriter(
                number,
                world.broker.bootstrap,
                self._model,
                world.violations,
                world.broker.folder / "transactional-writers.log",
                first_process=self._writer_count,
            )
            self.writers.append(writer)
            writer.start()

    def stop_writing(self) -> None:
        """Returns when nobody writes any more; what was killed may be open for a while."""
        for writer in self.writers:
            writer.ask_to_stop()
        for writer in self.writers:
            writer.stop()
            self.kill_count += writer.kill_count
            self.zombie_count += writer.zombie_count
        self.writers.clear()

    def start_reading(self) -> None:
        world = self._world
        for bootstrap, place in (
            (world.broker.bootstrap, ""),
            (world.replica.bootstrap, " at the replica"),
        ):
            reader = CommittedReader(bootstrap, self._model, world.violations, place=place)
            self.readers.append(reader)
            reader.start()

    def stop_reading(self) -> None:
        for reader in self.readers:
            reader.ask_to_stop()
        for reader in self.readers:
            reader.stop()

    # --- a lost disk -------------------------------------------------------------------------

    def wait_until_covered(self, seconds: float) -> None:
        """All that was ever written is in the bucket, and nothing is open."""
        self._wait_until_stable(self._world.broker.port, seconds)
        left = self._within(seconds, self._uncovered)
        assert not left, left

    def close(self) -> None:
        """The broker is dead, and its disk will be lost."""
        for partition in self._model.partitions:
            partition.close()
        self._scanned = scan_all(self._world.bucket, self._model)
        for partition in self._model.partitions:
            partition.cut(*self._world.in_bucket(partition))

    def open(self, seconds: float, *, is_covered: bool) -> None:
        """The broker was restored: it has what the lake had, and no half of a transaction."""
        for partition in self._model.partitions:
            if not is_covered:
                self._model.lose(partition.number)
            partition.open()
        self._wait_until_stable(self._world.broker.port, seconds)
        restored = self._read(self._world.broker.bootstrap, " of the restored broker")
        for before, after in zip(self._scanned, restored, strict=True):
            self._model.found(after.number, after.complete)
            gone = set(before.codes) - set(after.codes)
            if gone:
                self._say(f"{len(gone)} records were committed for the lake, and not restored")
        if is_covered:
            self._model.check_atomic(restored)

    # --- the end -----------------------------------------------------------------------------

    def check_settled(self, seconds: float, *, with_spark: bool) -> None:
        """Nobody writes any more: everybody has the same committed records."""
        world = self._world
        self.wait_until_covered(seconds)
        wanted = self._read(world.broker.bootstrap, " in the end")
        self._model.check_atomic(wanted)
        world.counts["committed records read in the end"] += sum(len(one.codes) for one in wanted)
        self._wait_until_stable(world.replica.port, seconds)
        self._compare(wanted, self._read(world.replica.bootstrap, " at the replica in the end"))
        self._compare(wanted, scan_all(world.bucket, self._model))
        if with_spark:
            self._check_spark([code for one in wanted for code in one.codes])

    def check_restored(self, seconds: float) -> None:
        """The same of a broker that has nothing but the bucket."""
        world = self._world
        wanted = self._read(world.broker.bootstrap, " before the last restore")
        world.kill()
        world.broker.lose_disks()
        world.restore()
        world.start()
        self._wait_until_stable(world.broker.port, seconds)
        self._compare(wanted, self._read(world.broker.bootstrap, " of the last restore"))

    def _check_spark(self, wanted: list[int]) -> None:
        world = self._world
        session = make_session(world.broker.folder / "warehouse")
        for engine in ENGINES:
            values = spark_values(session, world.bucket, TRANSACTED, engine)
            codes = [int(value.partition(b" ")[0].rpartition(b"/")[2]) for value in values]
            world.counts[f"committed records read by Spark ({engine})"] += len(codes)
            if codes != wanted:
                self._say(f"Spark ({engine}) has {len(codes)} records, a consumer {len(wanted)}")
        session.stop()

    def _read(self, bootstrap: str, place: str) -> list[CommittedPass]:
        return read_all(bootstrap, self._model, self._world.violations, place)

    def _compare(self, wanted: list[CommittedPass], found: list[CommittedPass]) -> None:
        for one, other in zip(wanted, found, strict=True):
            if one.codes != other.codes:
                self._say(
                    f"partition {one.number}: {other.who} has {len(other.codes)} records,"
                    f" {one.who} {len(one.codes)}"
                )

    def _say(self, text: str) -> None:
        self._world.violations.add(f"{TRANSACTED}: {text}")

    # --- waiting -----------------------------------------------------------------------------

    def _uncovered(self) -> str:
        world = self._world
        behind = []
        for partition in self._model.partitions:
            end = self._end(world.broker.port, partition, READ_UNCOMMITTED)
            archived = world.in_bucket(partition)[1]
            if archived != end:
                behind.append(f"{partition.name} ends at {end}, in the bucket at {archived}")
        return "; ".join(behind)

    def _wait_until_stable(self, port: int, seconds: float) -> None:
        left = self._within(seconds, lambda: self._unstable(port))
        assert not left, left

    def _unstable(self, port: int) -> str:
        return "; ".join(
            f"{partition.name} is open from {stable} to {end}"
            for partition in self._model.partitions
            for stable in [self._end(port, partition, READ_COMMITTED)]
            for end in [self._end(port, partition, READ_UNCOMMITTED)]
            if stable != end
        )

    def _end(self, port: int, partition: PartitionModel, isolation: int) -> int:
        with WireClient(port) as client:
            return offset_at(
                client,
                partition.topic,
                LATEST,
                partition=partition.number,
                isolation_level=isolation,
            ).offset

    @staticmethod
    def _within(seconds: float, check: Callable[[], str]) -> str:
        """Asks `check` until it has nothing to say; what it said last."""
        give_up_s = time.monotonic() + seconds
        while (left := check()) and time.monotonic() < give_up_s:
            time.sleep(0.2)
        return left

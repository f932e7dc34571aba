"""A process that writes one transaction after the other, and says on its output what it does.

    ready                  its transactional id is its own
    begin 7                records of transaction 7 may be in the log from now on
    ending 7 commit        the outcome may be decided from now on; or `abort`
    committed 7 [12, 40]   it was told so; the last offset in each partition
    aborted 7
    fenced                 another one took its id: it ends

It is killed or suspended at any line. It ends between two transactions when its input ends.

    python -m tests.system.soak.transacted.writer BOOTSTRAP ID NUMBER TOPIC PARTITIONS
"""

from __future__ import annotations

import random
import select
import sys
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.system.soak.libraries import QUIET
from tests.system.soak.model import make_value
from tests.system.soak.transacted.model import code_of, record_count

VALUE_BYTES = (100, 4_000)
PAUSE_S_MAX = 0.3
ABORT_SHARE = 0.2
TIMEOUT_MS = 10_000
CALL_S_MAX = 20.0


class Fenced(Exception):
    """There is a newer producer of this id, or the broker gave up on this one."""


class Writer:
    """See the top of this file."""

    def __init__(
        self, bootstrap: str, transactional_id: str, number: int, topic: str, partitions: int
    ) -> None:
        self._number = number
        self._topic = topic
        self._last_offsets = [-1] * partitions
        self._chance = random.Random(number)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 5,
                "compression.type": ("none", "lz4", "zstd")[number % 3],
                **QUIET,
            }
        )

    def run(self) -> None:
        """Raises Fenced."""
        patiently(lambda: self._producer.init_transactions(CALL_S_MAX))
        say("ready")
        transaction = 0
        while not select.select([sys.stdin], [], [], self._chance.uniform(0, PAUSE_S_MAX))[0]:
            self._write(transaction)
            transaction += 1

    def _write(self, transaction: int) -> None:
        commits = self._chance.random() >= ABORT_SHARE
        say(f"begin {transaction}")
        try:
            self._producer.begin_transaction()
            self._send(transaction)
            say(f"ending {transaction} {'commit' if commits else 'abort'}")
            if commits:
                patiently(lambda: self._producer.commit_transaction(CALL_S_MAX))
                say(f"committed {transaction} {self._last_offsets}")
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise Fenced from error
        patiently(lambda: self._producer.abort_transaction(CALL_S_MAX))
        say(f"aborted {transaction}")

    def _send(self, transaction: int) -> None:
        for partition in range(len(self._last_offsets)):
            for index in range(record_count(transaction)):
                code = code_of(self._number, transaction, index)
                padding = self._chance.randbytes(self._chance.randint(*VALUE_BYTES))
                value = make_value(self._topic, partition, 0, code, padding)
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._delivered
                )
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._last_offsets[int(message.partition() or 0)] = int(message.offset() or 0)


def patiently(call: Callable[[], None]) -> None:
    """Repeats what may be repeated. Raises Fenced, or KafkaException for what must be aborted."""
    while True:
        try:
            call()
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                raise
            if not reason.retriable() or reason.fatal():
                raise Fenced from error
        else:
            return


def say(text: str) -> None:
    print(text, flush=True)


def main(
    bootstrap: str, transactional_id: str, number: str, topic: str, partition_count: str
) -> None:
    try:
        Writer(bootstrap, transactional_id, int(number), topic, int(partition_count)).run()
    except Fenced as error:
        say("fenced")
        print(repr(error.__cause__), file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])

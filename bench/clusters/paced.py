"""A producer at a fixed rate, and what each of its records waited for its acknowledgement.

A record that is acknowledged late counts from when it was due, also if the client sent it later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from confluent_kafka import KafkaError, Producer

from bench.clusters.rig import EAGER, WAIT_S


def waits_ms(
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    record_bytes: int,
    per_s: float,
    goes_on: Callable[[float], bool],
) -> np.ndarray:
    """Sends a record to one partition after the other, each a batch, with acks=all.

    `goes_on` gets the seconds since the beginning. Raises RuntimeError if a record is lost.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": -1,
            "linger.ms": 0,
            "enable.idempotence": True,
            "message.max.bytes": 2 * record_bytes + 1000,
            **EAGER,
        }
    )
    found: list[float] = []
    failed: list[KafkaError] = []

    def note(due_s: float, error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)
        found.append(1000 * (time.perf_counter() - due_s))

    value = bytes(record_bytes)
    began_s = time.perf_counter()
    number = 0
    while goes_on((due_s := began_s + number / per_s) - began_s):
        while (left_s := due_s - time.perf_counter()) > 0:
            producer.poll(left_s)
        to = number % partitions
        producer.produce(topic, value, partition=to, on_delivery=partial(note, due_s))
        producer.poll(0)
        number += 1
    if producer.flush(WAIT_S) or failed:
        raise RuntimeError(f"{len(failed)} of {number} records failed: {failed[:2]}")
    return np.array(found)

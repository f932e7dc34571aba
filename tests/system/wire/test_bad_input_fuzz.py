"""A few hundred broken requests of every API and version: the broker stays, and stays small.

Valid frames are mutated with a seeded generator: bits, extreme numbers, cuts, repeats, splices. For
each the broker may answer or close; it may not fall over it, and a failure names the frame. To look
for more than the fixed seed finds: STRANDLINE_FUZZ_SEED=... STRANDLINE_FUZZ_ROUNDS=...
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import with_crc
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    append,
    assert_serves,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetched_bytes,
    offset_at,
    produce,
)
from tests.system.fuzz.frames import TOPIC, recorded_frames
from tests.system.fuzz.listeners import Listeners
from tests.system.fuzz.mutations import fire, mutated

pytestmark = [pytest.mark.slow, pytest.mark.crash]

SEED = int(os.environ.get("STRANDLINE_FUZZ_SEED", "20260131"))
ROUNDS = int(os.environ.get("STRANDLINE_FUZZ_ROUNDS", "4"))
BATCH_CASES = 150
SEALED_CASES = 100 * ROUNDS
GROWTH_MIB_MAX = 48


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Listeners:
    return Listeners(tmp_path_factory.mktemp("listeners"))


@pytest.fixture(scope="module")
def target(
    listeners: Listeners, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = {**KEEP_EVERYTHING, **listeners.settings}
    with BrokerProcess(tmp_path_factory.mktemp("target"), settings=settings) as running:
        with WireClient(running.port) as client:
            create_topic(client, TOPIC, 2)
            append(client, TOPIC, batch(10))
        yield running


class FaultDetector:
    """Reads what the broker logged since the last look."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._seen_bytes = broker.log_path.stat().st_size

    def check(self, frame: bytes) -> None:
        """Fails with the frame if the broker fell over it."""
        size_bytes = self._broker.log_path.stat().st_size
        if size_bytes > self._seen_bytes:
            new = self._broker.log_path.read_bytes()[self._seen_bytes :].decode(errors="replace")
            self._seen_bytes = size_bytes
            assert "Traceback" not in new, f"seed {SEED}, frame {frame.hex()}:\n{new[:3000]}"
        assert self._broker.running, f"seed {SEED}: it died of frame {frame.hex()}"


def test_every_recorded_frame_is_a_good_one(target: BrokerProcess) -> None:
    """Else the mutations would only knock at the door."""
    for frame in recorded_frames():
        with WireClient(target.port) as client:
            client.send_raw(frame)
            assert len(client.receive_frame()) > 4


def test_mutated_requests_neither_stop_nor_bloat_the_broker(target: BrokerProcess) -> None:
    frames = recorded_frames()
    generator = random.Random(SEED)
    detector = FaultDetector(target)
    for frame in frames:
        fire(target.port, frame)  # So that what is loaded on first use does not count as growth.
    before_mib = target.resident_mib()
    for _ in range(ROUNDS * len(frames)):
        frame = mutated(generator, frames)
        fire(target.port, frame)
        detector.check(frame)
    assert_serves(target.port)
    assert target.resident_mib() - before_mib < GROWTH_MIB_MAX
    with WireClient(target.port) as client:
        assert end_offset(client, TOPIC) >= 10


def test_what_is_mutated_at_listeners_of_tls_and_tokens_neither_stops_nor_bloats_the_broker(
    target: BrokerProcess, listeners: Listeners
) -> None:
    frames = recorded_frames()
    generator = random.Random(SEED)
    detector = FaultDetector(target)
    listeners.log_in()
    for frame in frames:
        fire(target.port, frame)
    before_mib = target.resident_mib()
    for _ in range(SEALED_CASES):
        detector.check(listeners.fire(generator, frames))
    listeners.log_in()
    assert_serves(target.port)
    assert target.resident_mib() - before_mib < GROWTH_MIB_MAX


def mutated_batch(generator: random.Random) -> bytes:
    """A batch with a few bytes changed, its CRC true again in two of three cases."""
    encoded = bytearray(
        batch(
            generator.randint(1, 4),
            producer_id=generator.choice((-1, 5)),
            producer_epoch=generator.choice((-1, 0)),
            base_sequence=generator.choice((-1, 0, 1)),
        )
    )
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(len(encoded))
        encoded[position] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, encoded[position] ^ 4))
    if generator.random() < 0.2:
        del encoded[generator.randrange(1, len(encoded)) :]
    if len(encoded) > 61 and generator.random() < 0.66:
        with_crc(encoded)
    return bytes(encoded)


def stored_bytes(client: WireClient, topic: str) -> bytes:
    """The whole log; each fetch ends with a segment, and odd timestamps make many of those."""
    stored = b""
    offset, end = 0, end_offset(client, topic)
    while offset < end:
        part = fetched_bytes(fetch(client, topic, offset, partition_max_bytes=50_000_000))
        for positioned in walk(part):
            assert positioned.header.base_offset == offset
            offset = positioned.header.next_offset
        assert part, (offset, end)
        stored += part
    assert offset == end
    return stored


def test_whatever_batches_are_taken_the_log_stays_readable_and_survives_a_crash(
    target: BrokerProcess,
) -> None:
    """Behind a connection's first batches a true CRC over nonsense is stored as it came; offsets
    stay dense.
    """
    topic = "batches"
    generator = random.Random(SEED)
    detector = FaultDetector(target)
    taken = 0
    with WireClient(target.port) as client:
        create_topic(client, topic)
        for _ in range(BATCH_CASES):
            encoded = mutated_batch(generator)
            answer = produce(client, topic, encoded, version=generator.choice((3, 7, 9, 12)))
            taken += answer.error_code == 0
            detector.check(encoded)
        end = end_offset(client, topic)
        before = stored_bytes(client, topic)
        for timestamp in (0, 2**62, -3):
            offset_at(client, topic, timestamp)
            detector.check(b"ListOffsets")
    assert 5 < taken < BATCH_CASES
    target.kill()
    target.start()
    with WireClient(target.port) as client:
        assert end_offset(client, topic) == end
        assert stored_bytes(client, topic) == before

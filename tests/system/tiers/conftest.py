"""Brokers with a remote tier in a bucket of their own, on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import S3Bucket
from tests.system.tiers.tiered_broker import Archive, TieredBroker

MakeBroker = Callable[..., TieredBroker]
# What a failed test shows of its brokers' logs.
LOG_TAIL_CHARACTERS = 6000


@pytest.fixture
def archive(s3_bucket: S3Bucket) -> Archive:
    """The test's bucket, seen without a broker and past every proxy."""
    return Archive.open(s3_bucket)


@pytest.fixture
def make_broker(tmp_path: Path, s3_bucket: S3Bucket) -> Iterator[MakeBroker]:
    """`make_broker(name="a", **settings of TieredBroker)`: not started; killed after the test."""
    made: list[TieredBroker] = []

    def make(*, name: str = "broker", **options: object) -> TieredBroker:
        broker = TieredBroker(tmp_path / name, s3_bucket, **options)  # type: ignore[arg-type]
        made.append(broker)
        return broker

    yield make
    for broker in made:
        if broker.running:
            broker.kill()
        # Pytest shows this for failed tests only.
        print(f"--- log of {broker.folder.name}\n{broker.log_text()[-LOG_TAIL_CHARACTERS:]}")


@pytest.fixture
def broker(make_broker: MakeBroker) -> TieredBroker:
    """A running broker with both tiers."""
    broker = make_broker()
    broker.start()
    return broker

"""Brokers that are killed and started again, and where their files lie."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import BrokerProcess

SMALL_SEGMENTS = {"segment.bytes": "1048576"}


def kill_and_start(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def partition_folder(broker: BrokerProcess, topic: str, partition: int = 0) -> Path:
    return broker.data / f"{topic}-{partition}"


def last_segment(broker: BrokerProcess, topic: str) -> Path:
    return max(partition_folder(broker, topic).glob("*.log"))

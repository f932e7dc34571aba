"""`strandline restore` as a process, and what has to be in the bucket before a disk is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from tests.support.forked import run_process
from tests.system.tiers.tiered_broker import (
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

# As for the start of a broker: on a loaded machine it takes many times its second.
RESTORE_S_MAX = 120.0


def run_restore(
    broker: TieredBroker, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`strandline restore` with the broker's own configuration."""
    command = [*broker.program, "restore", *options]
    for name, value in {"node.id": "1", "log.dirs": str(broker.data), **broker.settings}.items():
        command += ["--set", f"{name}={value}"]
    broker.folder.mkdir(parents=True, exist_ok=True)
    return run_process(
        command, folder=broker.folder, timeout_s=RESTORE_S_MAX, environment=environment
    )


def mirrors_topic(archive: Archive, topic: str) -> bool:
    """Whether the mirror of the metadata log in the bucket names the topic."""
    return any(topic.encode() in archive.store.get(key) for key in archive.below("metadata/"))

"""Brokers that died at a crash point, and what they leave on the disk and in the bucket."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.crash_points import (
    EXIT_STATUS_KILLED,
)
from tests.conftest import S3Bucket
from tests.system.tiers.tiered_broker import (
    WAIT_S,
    Archive,
    TieredBroker,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The folder of a stopped broker and its bucket, to be copied."""

    data: Path
    bucket: S3Bucket

    def copy_data(self, broker: TieredBroker) -> None:
        shutil.copytree(self.data, broker.data)

    def copy_objects(self, archive: Archive) -> None:
        source = Archive.open(self.bucket).store
        for info in source.list(""):
            archive.store.put(info.key, source.get(info.key))


def wait_for_death(broker: TieredBroker) -> None:
    assert broker.wait_for_exit(WAIT_S) == EXIT_STATUS_KILLED


def orphan_keys(archive: Archive) -> set[str]:
    return {orphan.key for orphan in archive.orphans()}

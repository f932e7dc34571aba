"""What of the metadata becomes of the partitions that are served."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.cluster.image import MetadataImage
from tests.unit.cluster.served import serving
from tests.unit.local.log_folders import open_dirs


def test_a_deleted_topic_is_served_by_no_partition_although_a_folder_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dirs = open_dirs(tmp_path)

    async def delete() -> None:
        with ThreadPoolExecutor(1) as disk:
            replicas = await serving(dirs, disk, partitions=3)
            assert len(replicas.partitions()) == 3
            shutil.rmtree(tmp_path / "t-0")
            await replicas.follow(MetadataImage())
            assert replicas.partitions() == ()
            assert [replicas.partition("t", index) for index in range(3)] == [None] * 3

    asyncio.run(delete())
    assert [path.name for path in tmp_path.glob("t-?")] == []
    assert len(list(tmp_path.glob("t-?.*-delete"))) == 2
    assert caplog.text.count("folder of a deleted partition stays") == 1
    dirs.close()

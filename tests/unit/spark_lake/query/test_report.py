"""The report of a query: where it may be written, and what is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.spark_lake.query.report import read_scan_reports
from strandline.storage.errors import (
    CorruptFile,
    InvalidConfig,
)
from tests.unit.spark_lake.archive.damaged import refused
from tests.unit.spark_lake.archive_builder import (
    ArchiveBuilder,
)


def test_a_report_folder_must_be_local_and_a_report_must_be_one(
    archive: ArchiveBuilder, tmp_path: Path
) -> None:
    for folder in ("s3://bucket/x", "reports"):
        assert "option scanReport" in refused(archive, InvalidConfig, scanReport=folder)
    (tmp_path / "x.plan.json").write_text("{")
    with pytest.raises(CorruptFile, match=r"x\.plan\.json"):
        read_scan_reports(tmp_path)

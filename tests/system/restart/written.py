"""What older states wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any


def unpack(packed: Path, folder: Path) -> None:
    """With any Python: 3.11.4 is the first that names its filter."""
    with tarfile.open(packed) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)


def expected_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "expected.json").read_bytes())
    return content


def archive_settings(folder: Path) -> dict[str, str]:
    """Settings of a broker on the unpacked bucket."""
    return {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{folder}/bucket",
        "log.retention.ms": "-1",
    }

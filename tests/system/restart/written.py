"""Unpacks what older states wrote, with any Python: 3.11.4 is the first that names its filter."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(packed: Path, folder: Path) -> None:
    with tarfile.open(packed) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)

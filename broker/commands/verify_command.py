"""`strandline verify`: prints findings with remedies, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strandline.broker.commands.progress import BarProgress
from strandline.storage.local.inspect.verify import (
    FileDamage,
    FileFinding,
    data_bytes,
    verify_folders,
)
from strandline.storage.plurals import counted, human_bytes

# As in `strandline archive verify`.
DAMAGED = 3
# The bar counts in these: a terabyte in bytes would be a row of digits.
UNIT_BYTES = 1024 * 1024


def verify(data_folders: Sequence[Path]) -> int:
    """Checks the folders and prints findings; returns the exit code. Raises StrandlineError."""
    folders = list(data_folders)
    with BarProgress() as progress:
        progress.begin("MiB", data_bytes(folders) // UNIT_BYTES)
        bar = _Bar(progress)
        verified = verify_folders(folders, on_bytes=bar.add)
    for finding in verified.findings:
        print(_line(finding))
    for damage in FileDamage:
        if any(finding.damage is damage for finding in verified.findings):
            print(f"{damage.name}: {damage.value}.")
    left = sum(finding.damage is not FileDamage.TAIL for finding in verified.findings)
    in_use = "; a broker is at work, what it is writing was left out" if verified.is_in_use else ""
    print(
        f"{counted(verified.partitions, 'partition')}, {counted(verified.segments, 'segment')},"
        f" {counted(verified.batches, 'batch', 'batches')}, {counted(verified.records, 'record')},"
        f" {human_bytes(verified.size_bytes)}:"
        f" {counted(left, 'finding') if left else 'whole'}{in_use}"
    )
    return DAMAGED if left else 0


def _line(finding: FileFinding) -> str:
    return f"{finding.damage.name} {finding.path}: {finding.text}"


class _Bar:
    """Converts bytes to whole units of the progress bar."""

    def __init__(self, progress: BarProgress) -> None:
        self._progress = progress
        self._bytes = 0

    def add(self, size_bytes: int) -> None:
        units = (self._bytes % UNIT_BYTES + size_bytes) // UNIT_BYTES
        self._bytes += size_bytes
        if units:
            self._progress.advance(units)

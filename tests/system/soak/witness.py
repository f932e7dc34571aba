"""What the disks of all brokers say of a partition when a producer is refused.

    <evidence>/<topic>-<partition>.txt    batches with producer, epoch and sequences, and snapshots

The brokers live on and free what is archived, so it is written down at once, from the files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from strandline.storage.errors import StrandlineError
from strandline.storage.local.inspect.dump import dump_log
from tests.system.soak.model import PartitionModel

SUFFIXES = (".log", ".snapshot", ".log.deleted", ".snapshot.deleted")
FILES_MAX = 200


class Witness:
    """Writes down what lies in `data` of a partition, the first time that it is asked."""

    def __init__(self, data: Path, evidence: Path) -> None:
        self._data = data
        self._evidence = evidence
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, partition: PartitionModel, reason: str) -> None:
        with self._lock:
            if partition.name in self._seen:
                return
            self._seen.add(partition.name)
        self._evidence.mkdir(parents=True, exist_ok=True)
        with open(self._evidence / f"{partition.name}.txt", "w") as file:
            print(time.strftime("%H:%M:%S"), reason, file=file)
            for line in self._lines(partition.name):
                print(line, file=file)

    def _lines(self, name: str) -> Iterator[str]:
        for folder in sorted(self._data.rglob(name)):
            found = [path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)]
            for path in found[-FILES_MAX:]:
                yield f"--- {path.relative_to(self._data)}"
                try:
                    yield from dump_log(path, verify=False, print_records=False)
                except StrandlineError as error:
                    yield f"gone meanwhile: {error!r}"

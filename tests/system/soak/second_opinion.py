"""What the broker itself says where a client library gets nothing: who is stuck, it or the client?

    offsets   log start and end, as ListOffsets has them
    fetch     the same offset over a bare socket, a few times: a cold read may take its time

A violation that names only the client leaves open whether the records could be had. Whatever goes
wrong here is part of the answer, not an error of its own.
"""

from __future__ import annotations

from strandline.storage.errors import StrandlineError
from tests.system.soak.model import PartitionModel
from tests.system.tiers.log_client import EARLIEST, EARLIEST_LOCAL, LATEST, LogClient

FETCHES = 3
WAIT_MS = 5_000


def ask_the_broker(bootstrap: str, partition: PartitionModel, offset: int) -> str:
    """One line for the report."""
    told: list[str] = []
    try:
        port = int(bootstrap.rpartition(":")[2])
        with LogClient(port, partition.topic, partition.number) as client:
            for name, special in (
                ("start", EARLIEST),
                ("local start", EARLIEST_LOCAL),
                ("end", LATEST),
            ):
                listed = client.list_offset(special)
                told.append(f"{name} {listed.offset} (error {listed.error_code})")
            for _ in range(FETCHES):
                found = client.fetch(offset, wait_ms=WAIT_MS)
                told.append(
                    f"fetch: error {found.error_code}, {len(found.records)} bytes,"
                    f" high watermark {found.high_watermark}"
                )
                if found.records or found.error_code:
                    break
    except (OSError, AssertionError, StrandlineError) as error:
        told.append(f"no answer: {error!r}")
    return "the broker says: " + "; ".join(told)

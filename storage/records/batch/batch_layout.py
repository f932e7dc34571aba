"""Field positions and sizes of batch v2, see `batch`: for modules that load no more of it."""

from __future__ import annotations

HEADER_BYTES = 61
# Base offset and batch length: enough to step over a batch.
LOG_OVERHEAD_BYTES = 12
BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
CRC_START = 21
MAGIC = 2

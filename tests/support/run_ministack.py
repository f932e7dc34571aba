"""Runs MiniStack with a compiled CRC-32C. Executed by MiniStack's own interpreter, not by ours.

MiniStack computes CRC-32C in a Python loop, at 7 MB/s, while its event loop stands still: an upload
of a 64 MiB segment would take nine seconds. The `crc32c` package answers the same question at
memory speed. Should a later MiniStack have no such function, nothing is replaced.
"""

import crc32c
from ministack.app import main
from ministack.services import s3

if hasattr(s3, "_crc32c"):
    s3._crc32c = crc32c.crc32c

main()

"""Small files with a one-line header: magic, version and checksum of the body.

{"magic": "strandline-...", "version": 1, "crc32c": of the body}
...the body...
...optional trailing bytes outside the checksum...
"""

from __future__ import annotations

import json
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Buffer
from strandline.storage.system import crc32c


def write(path: Path, body: Buffer, *, magic: str, version: int, end: bytes = b"") -> None:
    """Replaces the file and syncs it. Blocks. Raises DiskError."""
    head = {"magic": magic, "version": version, "crc32c": crc32c.crc32c(body)}
    files.write_atomically(path, json.dumps(head).encode() + b"\n" + body + end)


def read(path: Path, *, magic: str, version: int, end: bytes = b"") -> bytes | None:
    """Returns the body; None if there is no such file. Blocks.

    Raises CorruptFile, UnsupportedFormat, DiskError.
    """
    content = files.read_if_there(path)
    if content is None:
        return None
    head, _, rest = content.partition(b"\n")
    try:
        facts = json.loads(head)
        if facts["magic"] != magic:
            raise ValueError("magic is wrong")
        found = facts["version"]
        # The version before the checksum: a later version may compute it differently.
        if type(found) is int and found != version:
            raise UnsupportedFormat.of_version(
                f"{path}: {magic}", found, range(version, version + 1)
            )
        body = rest.removesuffix(end)
        if found != version or not rest.endswith(end) or facts["crc32c"] != crc32c.crc32c(body):
            raise ValueError("version or checksum is wrong")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{path}: {error}") from error
    return body

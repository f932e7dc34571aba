"""The object stores that the contract suite runs over.

memory      the fake of our own tests
file        a folder
ministack   S3 over HTTP, MiniStack in memory mode
moto        S3 over HTTP, moto's server: a second opinion
minio, versitygw, rclone
            what `make test-stores` built; only if $STRANDLINE_TEST_S3_SERVERS says where
endpoint    whatever $STRANDLINE_TEST_S3_ENDPOINT names, for instance LocalStack; only if set
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.remote.object_store.interface import ObjectStore
from tests.support.s3_servers import FOLDER_VARIABLE, SERVERS

MEMORY = "memory"
FILE = "file"
MINISTACK = "ministack"
MOTO = "moto"
ENDPOINT = "endpoint"
ENDPOINT_VARIABLE = "STRANDLINE_TEST_S3_ENDPOINT"


def store_kinds() -> list[str]:
    """The kinds to run over on this machine."""
    kinds = [MEMORY, FILE, MINISTACK, MOTO]
    kinds += SERVERS if os.environ.get(FOLDER_VARIABLE) else ()
    return [*kinds, ENDPOINT] if os.environ.get(ENDPOINT_VARIABLE) else kinds


def moto_command(port: int) -> list[str]:
    """Starts moto's server with this interpreter."""
    program = Path(__file__).resolve().parents[1] / "support" / "run_moto.py"
    return [sys.executable, "-P", str(program), "-H", "127.0.0.1", "-p", str(port)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnderTest:
    """A store with an empty root, and how to open the same root once more."""

    kind: str
    store: ObjectStore
    reopen: Callable[[], ObjectStore]

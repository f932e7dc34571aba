"""Third-party S3 servers as processes on loopback, each over a folder of its own.

`make test-stores` builds them from the versions in requirements/s3-servers.txt, and says in
$STRANDLINE_TEST_S3_SERVERS where they are. Without that nothing is tested over them.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.ministack import ServerProcess
from tests.support.ports import ReservedPort

FOLDER_VARIABLE = "STRANDLINE_TEST_S3_SERVERS"
MINIO = "minio"
VERSITYGW = "versitygw"
RCLONE = "rclone"
SERVERS = (MINIO, VERSITYGW, RCLONE)


def s3_server(name: str, folder: Path) -> ServerProcess:
    """The server of that name, not started yet, with its objects and its log in `folder`."""
    port = ReservedPort()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    user, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    address = f"127.0.0.1:{port.number}"
    arguments = {
        MINIO: ["server", "--quiet", "--address", address, str(data)],
        VERSITYGW: ["--quiet", "--port", address, "posix", str(data)],
        RCLONE: ["serve", "s3", "--addr", address, "--auth-key", f"{user},{secret}", str(data)],
    }
    return ServerProcess(
        [str(Path(os.environ[FOLDER_VARIABLE]).resolve() / name), *arguments[name]],
        port=port,
        log_path=folder / f"{name}.log",
        environment={
            "MINIO_ROOT_USER": user,
            "MINIO_ROOT_PASSWORD": secret,
            "ROOT_ACCESS_KEY": user,
            "ROOT_SECRET_KEY": secret,
            "RCLONE_CONFIG": os.devnull,
        },
    )

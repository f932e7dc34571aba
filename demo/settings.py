"""What is configured: names, ports, properties, and how long to wait for whom."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

TOPIC = "flights"
PARTITION_COUNT = 4
BUCKET = "strandline-demo"
PREFIX = "archive"
REGION = "us-east-1"
# MiniStack takes any credentials, but S3 clients want some.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    # History is kept for ever: in the bucket.
    "retention.ms": "-1",
    # Small segments, so that there is something to archive; Kafka allows none below 1 MiB.
    "segment.bytes": "1048576",
    # What is archived may leave the local disk at once. The flights are of 2013, so any time would.
    "local.retention.ms": "1000",
}

# Nothing of the demo leaves this machine, whatever proxy the way outside has.
NO_PROXY = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

BROKER_SETTINGS = {
    "node.id": "1",
    "remote.log.storage.system.enable": "true",
    # All of these are patient by default; the demo has an audience.
    "remote.log.manager.task.interval.ms": "500",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    # The segments are small on purpose; merged into a few large ones they would show no pruning.
    "strandline.remote.merge.target.bytes": "0",
}

# Each wait ends in an error instead of for ever. Starting takes about a second on an idle machine.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
# No record, no segment and no byte moved for this long: something is stuck.
STALL_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of the demo. Ports are free ones, near the usual where those are taken."""

    data: Path
    broker_port: int
    s3_port: int
    strandline: Path
    ministack: Path

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def s3_url(self) -> str:
        return f"http://127.0.0.1:{self.s3_port}"

    @property
    def remote_url(self) -> str:
        return f"s3://{BUCKET}/{PREFIX}"

    @property
    def s3_data(self) -> Path:
        return self.data / "s3"

    @property
    def broker_data(self) -> Path:
        return self.data / "broker"

    @property
    def tables(self) -> Path:
        return self.data / "tables"

    @property
    def warehouse_url(self) -> str:
        return self.tables.as_uri()

    def partition_folder(self, partition: int) -> Path:
        return self.broker_data / f"{TOPIC}-{partition}"

    def s3_environment(self) -> dict[str, str]:
        """What MiniStack is started with; without BIND_HOST it would listen on every interface."""
        return {
            "SERVICES": "s3",
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.s3_port),
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.s3_data),
        }

    def s3_command(self) -> list[str]:
        return [str(self.ministack)]

    def broker_command(self) -> list[str]:
        settings = BROKER_SETTINGS | {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.broker_data),
            "strandline.remote.url": self.remote_url,
            "strandline.remote.s3.endpoint.url": self.s3_url,
            "strandline.remote.s3.region": REGION,
        }
        command = [str(self.strandline), "serve"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else any free port of the loopback."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")

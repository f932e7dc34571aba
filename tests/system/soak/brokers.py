"""The two processes of a soak: the broker, with two log folders, and a replica of its archive.

    broker     ./one, ./two      partitions move between them while they are used
    replica    ./data            `strandline serve --read-only`, behind the same proxy

A replica that is started while its store answers nothing may give up: it is started again.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tests.conftest import S3Bucket
from tests.support.wire import WireClient
from tests.system.tiers.tiered_broker import TieredBroker

REPLICA_SETTINGS = {
    "node.id": "7",
    "strandline.remote.replica.poll.ms": "300",
    "offsets.topic.num.partitions": "1",
}
REPLICA_START_S_MAX = 90.0


class TwoFolderBroker(TieredBroker):
    """A broker whose partitions lie in one of two folders."""

    def __init__(
        self, folder: Path, bucket: S3Bucket, *, endpoint_url: str, settings: Mapping[str, str]
    ) -> None:
        super().__init__(folder, bucket, endpoint_url=endpoint_url, settings=settings)
        self.log_folders = (folder / "one", folder / "two")
        self.settings["log.dirs"] = ",".join(map(str, self.log_folders))

    def segment_files(self, topic: str, partition: int = 0) -> list[Path]:
        return sorted(
            (
                path
                for folder in self.log_folders
                for path in (folder / f"{topic}-{partition}").glob("*.log")
            ),
            key=lambda path: path.name,
        )

    def other_folder(self, topic: str, partition: int) -> Path:
        """The one where it is not."""
        one, two = self.log_folders
        return two if (one / f"{topic}-{partition}").exists() else one

    def lose_disks(self) -> None:
        """The folders of a broker that is down are gone."""
        for folder in self.log_folders:
            shutil.rmtree(folder)


class Replica(TieredBroker):
    """`strandline serve --read-only` on the same bucket."""

    command = ("serve", "--read-only")

    def __init__(self, folder: Path, bucket: S3Bucket, *, endpoint_url: str) -> None:
        super().__init__(folder, bucket, endpoint_url=endpoint_url, settings=REPLICA_SETTINGS)

    def start_at_last(self) -> None:
        """Starts it as often as that takes. Raises AssertionError after a while."""
        give_up_s = time.monotonic() + REPLICA_START_S_MAX
        while True:
            try:
                self.start()
            except AssertionError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.5)
            else:
                return

    def end(self, *, killed: bool) -> str:
        """kill -9 or SIGTERM; what was wrong about it."""
        if killed:
            self.kill()
            return ""
        try:
            code = self.stop()
        except subprocess.TimeoutExpired:
            return "the replica did not stop"
        return f"the replica stopped with exit code {code}" if code else ""


def ask_to_move(client: WireClient, topic: str, partition: int, folder: Path) -> int:
    """AlterReplicaLogDirs: the error code; the move itself goes on in the background."""
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[partition])
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=str(folder), topics=[wanted])]
    )
    (result,) = client.ask(request, AlterReplicaLogDirsResponse, 2).results
    return result.partitions[0].error_code

"""The folders of a lone broker become those of one of several, and the other way round.

    one                        several, where node.id is 1
    D/orders-0/                D/broker-1/orders-0/
    D/meta.properties          D/broker-1/meta.properties
    D/strandline-metadata/     D/controller/strandline-metadata/        D is the first of log.dirs
                               D/broker-2/ ...

No record is copied: entries are renamed, and the controller goes on with the metadata log of the
lone broker, under its cluster id. A mark in each folder says which way it is on. It is there from
before the first step until after the last one, so a kill at any moment is followed by the rest of
the steps, which are the same for what is done already.

    to several  1 mark   2 the metadata go to the controller   3 their broker is fenced there
                4 entries go aside   5 and all at once into the broker's folder   6 unmark
    to one      1 mark   2 the broker leads all, others are unregistered   3 the metadata go back
                4 folders of other brokers are put away   5 entries go back   6 unmark

A topic may be called `broker`, so `D/broker-1` may be its partition. A broker's folder has a
meta.properties, which no partition has; and on their way entries are in a folder of another name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.supervisor.moved_metadata import (
    check_alone,
    check_not_archived,
    led_by_none,
    led_by_one,
    without_brokers,
)
from strandline.broker.server.supervisor.plan import CONTROLLER_ID, broker_folder
from strandline.broker.server.upkeep.folder_marks import (
    ARCHIVE_MARK,
    BROKERS_MARK,
    CONTROLLER_FOLDER,
    METADATA_FOLDER,
)
from strandline.storage import files
from strandline.storage.crash_points import (
    ONE_AFTER_DECISION,
    ONE_AFTER_ENTRY,
    ONE_AFTER_FOLDER,
    ONE_AFTER_MARK,
    ONE_AFTER_METADATA,
    ONE_BEFORE_UNMARK,
    SEVERAL_AFTER_DECISION,
    SEVERAL_AFTER_ENTRY,
    SEVERAL_AFTER_FOLDER,
    SEVERAL_AFTER_MARK,
    SEVERAL_AFTER_METADATA,
    SEVERAL_BEFORE_UNMARK,
    crash_point,
)
from strandline.storage.errors import DiskError, InvalidConfig
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.names import is_put_aside, partition_of
from strandline.storage.local.log.closed_log import FILE_NAME as CLOSED_LOGS
from strandline.storage.local.log_dirs import last_known_time, last_run
from strandline.storage.local.log_dirs.log_dir import LOCK_FILE, lock_directory
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

log = logging.getLogger(__name__)

TO_SEVERAL: Final = b"several\n"
TO_ONE: Final = b"one\n"
PROPERTIES_FILE: Final = "supervised.properties"
LOST_CONTROLLER: Final = "runbooks/several-brokers#the-controllers-folder-is-gone"
_ON_THEIR_WAY: Final = ".strandline-moving"
# Of a broker that is no more; no log folder has such a name.
_FORMER: Final = ".former"
_BROKER: Final = re.compile(r"broker-(\d+)")
_FILES: Final = frozenset(
    (
        ARCHIVE_MARK,
        checkpoint.META_PROPERTIES,
        checkpoint.CLEAN_SHUTDOWN,
        checkpoint.MOVES,
        CLOSED_LOGS,
        last_known_time.FILE_NAME,
        last_run.FILE_NAME,
    )
)
_CHECKPOINT: Final = "-checkpoint"


@contextmanager
def locked(folders: Sequence[Path]) -> Iterator[None]:
    """Holds the folders, so that neither a lone broker nor another supervisor starts on them.

    Raises LogDirLocked, DiskError.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.callback(lock_directory(folder).unlock)
        yield


def become_several(config: BrokerConfig) -> None:
    """Lets the folders be those of several brokers; the caller has locked them, and it blocks.

    Raises InvalidConfig, StorageError.
    """
    folders = Folders.of(config)
    mark = folders.mark()
    if mark == TO_ONE:
        raise InvalidConfig(
            f"{folders.first}: becoming one broker again was interrupted; start one, without"
            " strandline.brokers, and then several"
        )
    if mark is None and not folders.are_of_one:
        if lost := lost_controller(folders.controller):
            raise InvalidConfig(lost)
        _leave_out(config, folders)
        return
    folders.check_owner(folders.first)
    folders.set_mark(TO_SEVERAL)  # 1
    crash_point(SEVERAL_AFTER_MARK)
    if (folders.first / METADATA_FOLDER).exists():
        folders.make_controller()
        files.rename(folders.first / METADATA_FOLDER, folders.controller / METADATA_FOLDER)  # 2
    crash_point(SEVERAL_AFTER_METADATA)
    if (folders.controller / METADATA_FOLDER).exists():
        metadata = folders.metadata_log(folders.controller)
        if records := led_by_none(metadata.load(), folders.node_id):
            metadata.append(records)  # 3
    crash_point(SEVERAL_AFTER_DECISION)
    for folder in folders.all:
        aside, target = folder / _ON_THEIR_WAY, folder / broker_folder(folders.node_id)
        if not _is_of_node(target):
            files.make_directory(aside)
            _move(folder, aside, SEVERAL_AFTER_ENTRY)  # 4
            folders.complete(aside)
            files.rename(aside, target)  # 5
        crash_point(SEVERAL_AFTER_FOLDER)
    crash_point(SEVERAL_BEFORE_UNMARK)
    folders.unmark()  # 6
    log.info(
        "a lone broker is one of several now",
        extra={"fields": {"broker": folders.node_id, "folder": folders.first}},
    )


def lost_controller(controller: Path) -> str:
    """Returns why no controller may start in this folder; empty if one may.

    In an empty one it would begin another cluster, whose brokers know no topic. Blocks.
    """
    is_there = (controller / checkpoint.META_PROPERTIES).exists()
    if is_there and (controller / METADATA_FOLDER).exists():
        return ""
    brokers = sorted(_node_folders(controller.parent))
    if not brokers:
        return ""
    return (
        f"{controller} has lost its metadata, and {brokers[0]} is there: bring that folder back;"
        f" strandline docs {LOST_CONTROLLER}"
    )


def become_one(config: BrokerConfig) -> None:
    """Lets the folders be those of a lone broker. Blocks.

    Raises InvalidConfig if partitions are on other brokers, LogDirLocked, StorageError.
    """
    folders = Folders.of(config)
    with files.private_files(), locked(folders.all), ExitStack() as stack:
        mark = folders.mark()
        if mark == TO_SEVERAL:
            raise InvalidConfig(
                f"{folders.first}: becoming several brokers was interrupted; start several, with"
                " --brokers or strandline.brokers, and then one"
            )
        for path in folders.of_nodes():
            # Processes of a supervisor that was killed may end later than it.
            stack.callback(lock_directory(path).unlock)
        if (folders.controller / METADATA_FOLDER).exists():
            metadata = folders.metadata_log(folders.controller)
            image = metadata.load()
            check_alone(image, folders.node_id)
            check_not_archived(image)
            folders.set_mark(TO_ONE)  # 1
            crash_point(ONE_AFTER_MARK)
            if records := led_by_one(image, folders.node_id):
                metadata.append(records)  # 2
            crash_point(ONE_AFTER_DECISION)
            files.rename(folders.controller / METADATA_FOLDER, folders.first / METADATA_FOLDER)  # 3
        crash_point(ONE_AFTER_METADATA)
        files.remove_tree(folders.controller)
        for folder in folders.all:
            _give_back(folder, folders.node_id)
            crash_point(ONE_AFTER_FOLDER)
        crash_point(ONE_BEFORE_UNMARK)
        folders.unmark()  # 6
    log.info("several brokers are one now", extra={"fields": {"folder": folders.first}})


def _give_back(folder: Path, node_id: int) -> None:
    aside, own = folder / _ON_THEIR_WAY, folder / broker_folder(node_id)
    if not aside.exists() and _is_of_node(own):
        files.rename(own, aside)
    for path in _node_folders(folder):
        _put_away(path)  # 4
    if aside.exists():
        files.remove(aside / LOCK_FILE)
        files.remove(aside / PROPERTIES_FILE)
        _move(aside, folder, ONE_AFTER_ENTRY)  # 5
        for path in _entries(aside):
            # Nothing of ours; it was beside the logs, and stays so.
            files.rename(path, folder / path.name, sync=False)
        files.remove_tree(aside)


def _leave_out(config: BrokerConfig, folders: Folders) -> None:
    """Puts away brokers that are not planned any more. Raises InvalidConfig if they are needed."""
    planned = range(config.node_id, config.node_id + config.membership.brokers)
    surplus = [path for path in folders.of_brokers() if int(path.name.split("-")[1]) not in planned]
    if not surplus:
        return
    metadata = folders.metadata_log(folders.controller)
    image = metadata.load()
    check_alone(image, *planned)
    if records := without_brokers(image, planned):
        metadata.append(records)
    for path in surplus:
        lock_directory(path).unlock()
        _put_away(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of log.dirs, and what is in them."""

    all: Sequence[Path]
    node_id: int

    @classmethod
    def of(cls, config: BrokerConfig) -> Folders:
        return cls(all=config.logs.dirs, node_id=config.node_id)

    @property
    def first(self) -> Path:
        return self.all[0]

    @property
    def controller(self) -> Path:
        return self.first / CONTROLLER_FOLDER

    @property
    def are_of_one(self) -> bool:
        """Whether a lone broker has them."""
        is_there = (self.first / checkpoint.META_PROPERTIES).exists()
        return is_there and not (self.controller / METADATA_FOLDER).exists()

    def complete(self, folder: Path) -> None:
        """Lets the folder be this broker's, also if its start never saw it."""
        path = folder / checkpoint.META_PROPERTIES
        if not path.exists():
            version = str(checkpoint.META_PROPERTIES_VERSION)
            checkpoint.write_properties(path, {"version": version, "node.id": str(self.node_id)})

    def of_brokers(self) -> list[Path]:
        return [path for folder in self.all for path in _node_folders(folder)]

    def of_nodes(self) -> list[Path]:
        own = [self.controller] if self.controller.exists() else []
        return [*own, *self.of_brokers()]

    def mark(self) -> bytes | None:
        """Returns the mark that one of them has. Raises DiskError."""
        marks = (files.read_if_there(folder / BROKERS_MARK) for folder in self.all)
        return next((mark for mark in marks if mark is not None), None)

    def set_mark(self, mark: bytes) -> None:
        for folder in self.all:
            files.write_atomically(folder / BROKERS_MARK, mark)

    def unmark(self) -> None:
        """The first folder last: it is looked at first."""
        for folder in reversed(self.all):
            files.sync_directory(folder)
            files.remove(folder / BROKERS_MARK)

    def check_owner(self, folder: Path) -> None:
        """Raises InvalidConfig if it is another broker's."""
        found = checkpoint.read_properties(folder / checkpoint.META_PROPERTIES) or {}
        if found.get("node.id", str(self.node_id)) != str(self.node_id):
            raise InvalidConfig(
                f"{folder} is the folder of broker {found['node.id']}, and node.id is"
                f" {self.node_id}: brokers count upwards from node.id"
            )

    def make_controller(self) -> None:
        """Makes the controller's folder, under the cluster id of the broker's."""
        path = self.first / checkpoint.META_PROPERTIES
        found = checkpoint.read_properties(path) or {}
        files.make_directory(self.controller)
        checkpoint.write_properties(
            self.controller / checkpoint.META_PROPERTIES,
            {
                "version": str(checkpoint.META_PROPERTIES_VERSION),
                "cluster.id": found.get("cluster.id") or checkpoint.random_id(),
                "node.id": str(CONTROLLER_ID),
                "directory.id": checkpoint.random_id(),
            },
        )

    def metadata_log(self, folder: Path) -> MetadataLog:
        """The metadata log in a folder, whose meta.properties has the cluster."""
        found = checkpoint.read_properties(folder / checkpoint.META_PROPERTIES) or {}
        return MetadataLog(
            LocalDirectoryStore(folder / METADATA_FOLDER), cluster_id=found.get("cluster.id", "")
        )


def _is_of_node(path: Path) -> bool:
    """Whether it is the folder of a broker, and not of a partition of that name."""
    return (path / checkpoint.META_PROPERTIES).exists()


def _node_folders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if _BROKER.fullmatch(path.name) and _is_of_node(path)]


def _put_away(path: Path) -> None:
    """Renames the folder of a broker that has no partition any more."""
    number, target = 1, path.with_name(f"{path.name}{_FORMER}")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}{_FORMER}{number}")
    files.rename(path, target)
    log.warning(
        "folder of a broker put away: it has no partition",
        extra={"fields": {"folder": target}},
    )


def _move(source: Path, target: Path, point: str) -> None:
    """Moves what a log folder has, and leaves what it does not know."""
    for path in _entries(source):
        if _is_ours(path):
            files.rename(path, target / path.name, sync=False)
            crash_point(point)
    files.sync_directory(source)
    files.sync_directory(target)


def _is_ours(path: Path) -> bool:
    name = path.name
    if name in _FILES or name.endswith(_CHECKPOINT):
        return True
    return partition_of(name) is not None or is_put_aside(name)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder))  # noqa: PTH208
    except OSError as error:
        raise DiskError(f"cannot list {folder}: {error.strerror}") from error

"""The record of who did what, with the file and the topic that keep it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from strandline.broker.audit.config import AuditConfig
from strandline.broker.audit.file import RecordFile
from strandline.broker.audit.line import line_of
from strandline.broker.audit.record import AuditRecord
from strandline.broker.audit.waiting import WaitingLines
from strandline.broker.authorization.denials import Denials
from strandline.broker.cluster.membership.brokers import OtherBrokers
from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_fault
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.handlers.audit.topic import RecordTopic
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig


class KeptRecord:
    """A record, and what keeps it."""

    def __init__(
        self,
        config: AuditConfig,
        clock: Clock,
        denials: Denials | None,
        worker: Executor,
        *,
        replicas: ReplicaManager | None,
        controller: Controller,
        others: OtherBrokers | None = None,
    ) -> None:
        """Opens the file, which `worker` will write. Raises InvalidConfig if it cannot.

        Without `replicas`, at a controller, the topic is left out: it is the brokers'. One of the
        `others` may lead it.
        """
        self._clock = clock
        self._denials = denials
        self._kept: list[WaitingLines] = []
        self._file = None if config.file is None else self._open_file(config.file, worker)
        self._topic = None
        if config.topic is not None and replicas is not None:
            name = _checked(config.topic)
            self._topic = RecordTopic(
                name, self._lines(), replicas, controller, clock, others=others
            )
        self.record = AuditRecord(self._add, clock, topic=config.topic)
        if denials is not None:
            denials.record_in(self.record)

    def _lines(self) -> WaitingLines:
        lines = WaitingLines(lambda count: line_of(self._clock.now_ms(), "lost", {"lines": count}))
        self._kept.append(lines)
        return lines

    def _open_file(self, path: str, worker: Executor) -> RecordFile:
        try:
            return RecordFile(path, self._lines(), self._clock, worker)
        except OSError as error:
            raise InvalidConfig(
                f"strandline.audit.file={path!r}: {os.strerror(error.errno or 0)}"
            ) from error

    def _add(self, line: str) -> None:
        for lines in self._kept:
            lines.add(line)

    @property
    def lost_count(self) -> int:
        """How many lines could not be kept since the start."""
        return sum(lines.lost_count for lines in self._kept)

    @property
    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        loops: dict[str, Callable[[], Awaitable[None]]] = {"record": self.record.run}
        if self._file is not None:
            loops["file of the record"] = self._file.run
        if self._topic is not None:
            loops["topic of the record"] = self._topic.run
        return loops

    async def close(self) -> None:
        """Records what is known by now, and writes all of it; the logs are still there."""
        if self._denials is not None:
            self._denials.tell_counts()
        self.record.tell()
        if self._topic is not None:
            await self._topic.write(creates=False)
        if self._file is not None:
            await self._file.close()


def _checked(topic: str) -> str:
    """Raises InvalidConfig for what can be no topic of the record."""
    fault = topic_name_fault(topic)
    if fault is None and topic in INTERNAL_TOPICS:
        fault = "it is a topic of the coordinators"
    if fault is not None:
        raise InvalidConfig(f"strandline.audit.topic={topic!r}: {fault}")
    return topic

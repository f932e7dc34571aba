"""Metadata: what one entry of its log costs a broker with many topics.

A broker in this process, its loops not started; its partitions are copies of one log, without files
of their own. Measured is CPU time: of the loop's thread from the decision to the answer, and of
applying the entry, which the thread does that appends it, under the lock of the interpreter.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.tiers.rig import Figure
from strandline.broker.cluster.metadata.active_controller import ActiveController
from strandline.broker.cluster.metadata.controller_messages import (
    AllocateProducerIds,
    ControllerRequest,
    CreateTopics,
    NewTopic,
)
from strandline.broker.config.config_changes import AlterConfigs
from strandline.broker.config.loading import load_config
from strandline.broker.protocol.messages.alter_configs import AlterableConfig, AlterConfigsResource
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.server.environment import process_environment
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.tiered import start_tiered
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicId, TopicPartition

# Topics, and partitions of each.
SIZES = ((5_000, 1), (5_000, 10), (50_000, 1))
ENTRIES_MEASURED = 30
TOPICS_PER_ENTRY = 500
TIERED = {"remote.storage.enable": "true"}

Change = ControllerRequest[Any]


def run_metadata(folder: Path) -> Iterator[Figure]:
    """Producer ids, a new topic and an altered one, each by the number of topics that there are."""
    for topics, partitions in SIZES:
        where = folder / f"{topics}-{partitions}"
        yield from asyncio.run(_measured(where, topics, partitions))


async def _measured(folder: Path, topics: int, partitions: int) -> Sequence[Figure]:
    settings = {
        "log.dirs": folder / "log",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": (folder / "archive").as_uri(),
    }
    config = load_config(None, [f"{name}={value}" for name, value in settings.items()])
    environment, spawn = process_environment(config), asyncio.get_running_loop().create_task
    started = await start_tiered(environment, config, spawn, ExitStack())
    (metadata,) = (one for one in started.parts if isinstance(one, MetadataParts))
    size = f"{topics:,} topics, {topics * partitions:,} partitions"
    figures = []
    try:
        with patch.object(LogDirs, "create_logs", copying_logs(LogDirs.create_logs)):
            await _create(metadata, topics, partitions)
            gc.collect()
            gc.freeze()
            for what, changes in _changes(partitions).items():
                figures.append(
                    Figure(
                        part="metadata",
                        name=f"{what}, {size}",
                        value=await _cost_ms(metadata, changes),
                        unit="ms",
                        goal="< 1" if topics * partitions <= 5_000 else "< 2",
                    )
                )
    finally:
        # The copies of the log are not for a clean stop.
        environment.workers.stop()
        gc.unfreeze()
    return figures


def copying_logs(create_logs: Callable[..., list[LocalLog]]) -> Callable[..., list[LocalLog]]:
    """Copies the first log that is created instead of creating more."""
    models: list[LocalLog] = []

    def create(
        log_dirs: LogDirs,
        keys: Sequence[TopicPartition],
        topic_id: TopicId,
        config: LogConfig,
        **rest: bool,
    ) -> list[LocalLog]:
        if not models:
            models.extend(create_logs(log_dirs, keys[:1], topic_id, config, **rest))
        made = [copy.copy(models[0]) for _ in keys]
        for key, local in zip(keys, made, strict=True):
            local.topic_partition, local.topic_id, local.config = key, topic_id, config
        return made

    return create


async def _create(metadata: MetadataParts, topics: int, partitions: int) -> None:
    for first in range(0, topics, TOPICS_PER_ENTRY):
        wanted = [_topic(number, partitions) for number in range(first, first + TOPICS_PER_ENTRY)]
        await metadata.controller.ask(CreateTopics(wanted))
    assert len(metadata.image.topics) == topics


def _topic(number: int, partitions: int) -> NewTopic:
    return NewTopic(
        name=f"topic.{number:06}",
        partition_count=partitions,
        replication_factor=1,
        properties=TIERED,
    )


def _changes(partitions: int) -> dict[str, Iterator[Change]]:
    return {
        "producer ids": (AllocateProducerIds(1) for _ in count()),
        "a topic made": (
            CreateTopics([_topic(10**6 + number, partitions)]) for number in range(ENTRIES_MEASURED)
        ),
        "a topic altered": (_altered(number) for number in range(ENTRIES_MEASURED)),
    }


def _altered(number: int) -> AlterConfigs:
    properties = {**TIERED, "retention.ms": str(10**9 + number)}
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name="topic.000007",
        configs=[AlterableConfig(name=name, value=text) for name, text in properties.items()],
    )
    return AlterConfigs([resource])


async def _cost_ms(metadata: MetadataParts, changes: Iterator[Change]) -> float:
    """Returns the median CPU time of an entry."""
    active = metadata.controller
    assert isinstance(active, ActiveController)
    costs_ms = []
    for _, change in zip(range(ENTRIES_MEASURED), changes, strict=False):
        before = metadata.image
        records = active.decide(change).records
        began_s = time.thread_time()
        await metadata.controller.ask(change)
        before.apply_entry(records)
        costs_ms.append(1000 * (time.thread_time() - began_s))
    return statistics.median(costs_ms)

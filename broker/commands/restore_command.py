"""The command `strandline restore`: progress bar, summary, exit code."""

from __future__ import annotations

import sys

from strandline.broker.commands.progress import BarProgress
from strandline.broker.commands.restore import Restore, RestoreSummary
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.tools.client.printing import say
from strandline.broker.tools.client.tables import print_table
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig
from strandline.storage.files import private_files
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.open_store import open_store

# Restored with omissions: the operator has to check them.
WITH_PROBLEMS = 1


def restore(config: BrokerConfig, *, skip_damaged: bool) -> int:
    """Restores and prints the summary; returns the exit code. Raises StrandlineError."""
    if config.archive.url is None:
        raise InvalidConfig("restore needs --remote, or strandline.remote.url in the configuration")
    if not config.given.keys() & {"log.dirs", "log.dir"}:
        raise InvalidConfig(
            f"restore writes to log.dirs, whose default is {config.logs.dirs[0]}: name the folders"
            " of the broker, with --config FILE or --set log.dirs=FOLDER"
        )
    store = open_store(
        config.archive.url,
        endpoint_url=config.archive.endpoint_url,
        region=config.archive.region,
        ca_file=config.archive.ca_file,
    )
    try:
        with private_files(), BarProgress() as progress:
            summary = Restore(
                config,
                store,
                clock=SystemClock(),
                progress=progress,
                skip_damaged=skip_damaged,
            ).run()
    finally:
        store.close()
    _print(summary, config)
    return WITH_PROBLEMS if summary.problems else 0


def _print(summary: RestoreSummary, config: BrokerConfig) -> None:
    print_table(
        f"restored cluster {summary.cluster_id}",
        ("topic", "partition", "segments", "size", "log start", "end", "note"),
        [
            (
                key.topic,
                key.partition,
                0 if state.manifest is None else state.manifest.segment_count,
                human_bytes(0 if state.manifest is None else state.manifest.size_bytes),
                state.log_start_offset,
                state.end_offset,
                state.problem or ("" if state.manifest else "nothing archived, begins empty"),
            )
            for key, state in sorted(summary.partitions.items())
            if key.topic != OFFSETS_TOPIC
        ],
    )
    say(
        f"{counted(summary.topic_count, 'topic')},"
        f" {counted(len(summary.partitions), 'partition')},"
        f" {counted(summary.offset_count, 'record')} of groups;"
        f" start the broker with these folders: {', '.join(map(str, config.logs.dirs))}"
    )
    for problem in summary.problems:
        print(f"strandline: {problem}", file=sys.stderr)

"""Arguments of `strandline status`, `cluster`, `topic`, `group`, `acl`, `produce` and `consume`.

`--help` of every command shows examples. `status` is imported when it runs, because it loads
an HTTP client, so that `strandline --help` is fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from strandline.broker.tools.commands.acls import add_acl
from strandline.broker.tools.commands.cluster import add_cluster
from strandline.broker.tools.commands.command_parser import (
    add_connection,
    chosen_connection,
    command_parser,
)
from strandline.broker.tools.commands.consume import add_consume
from strandline.broker.tools.commands.groups import add_group
from strandline.broker.tools.commands.options import Commands, add_json, add_repeated
from strandline.broker.tools.commands.produce import add_produce
from strandline.broker.tools.commands.topics import add_topic

# With the checks above them they fit on a screen.
TOPICS_SHOWN = 15
WATCH_S = 5.0

_STATUS_EXAMPLES = """
Asks each broker for the address of its metrics (strandline.metrics.listener) and
reads them. Prints what would be lost if the machine burned now, each problem and its
runbook, the bytes in each tier, the backlog of copies, and the requests to the
object store. Exit code 3: there is a problem.

examples:
  strandline status
  strandline status --bootstrap-server kafka.example.org:9092 --json
  strandline status --watch                             # again every 5 s, until Ctrl-C
  strandline status --metrics http://127.0.0.1:9404     # without a Kafka client
"""


def _add_status(commands: Commands) -> None:
    text = "check brokers, and show the contents of each tier"
    parser = command_parser(commands, "status", text, _STATUS_EXAMPLES, _status)
    add_connection(parser)
    add_repeated(parser, "--metrics", "URL", "where a broker serves its metrics; may be repeated")
    parser.add_argument(
        "--all-topics",
        action="store_true",
        help=f"list every topic, not only the {TOPICS_SHOWN} with most at stake",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_S,
        metavar="SECONDS",
        help=f"look again every so often, until Ctrl-C [{WATCH_S:.0f}]",
    )
    add_json(parser)


def _seconds(text: str) -> float:
    """For `add_argument`: a time between two looks."""
    seconds = float(text)
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0.1 to 86400")
    return seconds


def _status(options: argparse.Namespace) -> int:
    from strandline.broker.tools.commands.status import status, watch

    look = partial(
        status,
        chosen_connection(options),
        options.metrics,
        as_json=options.json,
        topics_max=None if options.all_topics else TOPICS_SHOWN,
    )
    return look() if options.watch is None else watch(look, interval_s=options.watch)


def add_commands(commands: Commands, add_remove: Callable[[Commands], None]) -> None:
    """Adds the seven to the parser of `strandline`; `add_remove` as for `add_cluster`."""
    _add_status(commands)
    add_cluster(commands, add_remove)
    add_topic(commands)
    add_group(commands)
    add_acl(commands)
    add_produce(commands)
    add_consume(commands)

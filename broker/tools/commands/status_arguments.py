"""Arguments of `strandline status`."""

from __future__ import annotations

import argparse

from strandline.broker.tools.commands.command_parser import (
    Commands,
    add_connection,
    chosen_connection,
    command_parser,
)

_EXAMPLES = """
Asks each broker where its metrics are (strandline.metrics.listener), reads them
and says what is wrong, in the words of docs/operations.md; what lies in which
tier, what waits to be copied, and the requests to the object store. Exit code
3: something is not as it should be.

examples:
  strandline status
  strandline status --bootstrap-server kafka.example.org:9092 --json
  strandline status --metrics http://127.0.0.1:9404     # without a Kafka client
"""


def add_status(commands: Commands) -> None:
    parser = command_parser(
        commands, "status", "is everything all right, and what lies where", _EXAMPLES
    )
    add_connection(parser)
    parser.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="URL",
        help="where a broker serves its metrics; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="JSON for programs")
    parser.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    from strandline.broker.tools.commands.status import status

    return status(chosen_connection(options), options.metrics, as_json=options.json)

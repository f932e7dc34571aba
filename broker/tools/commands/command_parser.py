"""Shared parts of the tools' parsers: help with examples, and connection options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.broker.tools.client.connection import (
    DEFAULT_BOOTSTRAP,
    ClusterConnection,
    connection_of,
)
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import is_utf8, printable
from strandline.broker.tools.commands.options import CommandParser, Commands, Run, add_command

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import Cluster

# A signed 32-bit number.
PARTITION_MAX = 2**31 - 1
BOOTSTRAP_VARIABLE = "STRANDLINE_BOOTSTRAP"

_REACHING = f"""
Reaching the cluster: --bootstrap-server, else the variable {BOOTSTRAP_VARIABLE}, else
{DEFAULT_BOOTSTRAP}. TLS, SASL and the rest are Kafka's client properties in a file, as Kafka's
tools take them: --command-config FILE. Single settings are librdkafka's, as in
  -X security.protocol=SASL_SSL -X sasl.username=me
Exit codes: 0 done, 1 the cluster refused or cannot be reached, 2 the command line is wrong.
"""


def command_parser(
    commands: Commands, name: str, text: str, examples: str, run: Run | None = None
) -> CommandParser:
    description = text[0].upper() + text[1:] + "."
    return add_command(commands, name, text, description, examples + _REACHING, run)


def action_parser(
    actions: Commands, examples: str, name: str, text: str, run: Run
) -> CommandParser:
    """Adds an action that connects to a cluster; its examples are those that name it."""
    own = "".join(
        line + "\n" for line in _joined(examples) if f" {name} " in line or line.endswith(name)
    )
    action = command_parser(actions, name, text, f"examples:\n{own}" if own else "", run)
    add_connection(action)
    return action


def _joined(examples: str) -> list[str]:
    """Splits into lines; joins those continued by a backslash."""
    return [part.replace("\0", "\\\n") for part in examples.replace("\\\n", "\0").splitlines()]


def add_connection(parser: CommandParser) -> None:
    group = parser.add_section("reaching the cluster")
    group.add_argument(
        "--bootstrap-server",
        "-b",
        default=os.environ.get(BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP),
        metavar="HOST:PORT",
        help="a broker, or several with commas [%(default)s]",
    )
    group.add_argument(
        "-X",
        action="append",
        default=[],
        dest="client_settings",
        metavar="KEY=VALUE",
        help="a setting of librdkafka; may be repeated",
    )
    group.add_argument(
        "--command-config", type=Path, metavar="FILE", help="a file of Kafka's client properties"
    )


def partition_number(text: str) -> int:
    """For `add_argument`: a valid partition number."""
    number = int(text)
    if not 0 <= number <= PARTITION_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no partition")
    return number


def record_count(text: str) -> int:
    """For `add_argument`: 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of records")
    return number


def chosen_connection(options: argparse.Namespace) -> ClusterConnection:
    """Returns the connection of the options. Raises WrongUse.

    Arguments come from the system as bytes, and become names on the wire, which are UTF-8; the
    library would abort the process.
    """
    for given in vars(options).values():
        for word in given if isinstance(given, list) else [given]:
            if isinstance(word, str) and not is_utf8(word):
                raise WrongUse(f"{printable(word)} is not UTF-8")
    return connection_of(options.bootstrap_server, options.client_settings, options.command_config)


def connect(connection: ClusterConnection) -> Cluster:
    """Connects to the cluster. Raises ToolFailure if no broker answers."""
    from strandline.broker.tools.client.cluster import Cluster

    return Cluster(connection)

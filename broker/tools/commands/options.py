"""Commands and arguments that several parsers have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

# argparse has no public name for the result of add_subparsers.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Run: TypeAlias = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands, name: str, text: str, description: str, epilog: str, run: Run | None = None
) -> argparse.ArgumentParser:
    """Adds a command, or a group of actions if there is no `run`; the epilog keeps its lines."""
    command = commands.add_parser(
        name,
        help=text,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(**({} if run is None else {"run": run}))
    return command


def add_actions(command: argparse.ArgumentParser) -> Commands:
    return command.add_subparsers(title="actions", required=True, metavar="ACTION")


def add_repeated(
    parser: argparse.ArgumentParser, name: str, metavar: str, text: str, dest: str | None = None
) -> None:
    """Adds an option that may be repeated, and is a list."""
    parser.add_argument(name, action="append", default=[], dest=dest, metavar=metavar, help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON for programs")


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before what cannot be undone; needed without a terminal",
    )


def add_bucket_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint-url", metavar="URL", help="of an S3 that is not AWS")
    parser.add_argument("--region", help="of the bucket")

"""The parser of all commands, and commands and arguments that several parsers have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

from strandline.broker.tools.commands.kafka_flags import translate_flags

USAGE_ERROR = 2

Run: TypeAlias = Callable[[argparse.Namespace], int]


class CommandParser(argparse.ArgumentParser):
    """A parser that lists its arguments and commands, which argparse keeps private.

    Its errors show the usage of the given command, not of the whole program.
    """

    _given: Sequence[str] = ()

    def __init__(self, **settings: Any) -> None:
        # Before argparse adds --help.
        self.arguments: list[argparse.Action] = []
        # Those of `add_commands`, by name.
        self.commands: Mapping[str, CommandParser] = {}
        super().__init__(**settings)

    @property
    def option_names(self) -> frozenset[str]:
        """The names of all options, with their dashes."""
        return frozenset(name for one in self.arguments for name in one.option_strings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """As argparse."""
        self.arguments.append(super().add_argument(*names, **settings))
        return self.arguments[-1]

    def add_section(self, title: str) -> ArgumentGroup:
        """Adds arguments that `--help` shows below a title of their own."""
        return ArgumentGroup(self.add_argument_group(title), self.arguments)

    def add_alternatives(self, *, required: bool = False) -> ArgumentGroup:
        """Adds arguments of which only one may be given."""
        return ArgumentGroup(self.add_mutually_exclusive_group(required=required), self.arguments)

    def add_commands(self, title: str, metavar: str) -> Commands:
        """Adds commands, of which one must be given."""
        commands: Commands = self.add_subparsers(title=title, required=True, metavar=metavar)
        self.commands = commands.choices
        return commands

    # typeshed has four overloads, which all pass their arguments on.
    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        self._given = tuple(args or ())
        options, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return options, left

    def error(self, message: str) -> NoReturn:
        if self.commands and not self._given:
            # `strandline` or `strandline topic` alone asks for help.
            self.print_help(sys.stderr)
            self.exit(USAGE_ERROR)
        hint = translate_flags(self._given, self.option_names)
        super().error(
            f"{message}; `{self.prog} --help` tells more" + (f"\n  {hint}" if hint else "")
        )


class Commands(Protocol):
    """The result of add_subparsers, whose class has no public name."""

    @property
    def choices(self) -> Mapping[str, CommandParser]: ...

    def add_parser(
        self,
        name: str,
        *,
        help: str,  # noqa: A002  # argparse's name
        description: str,
        epilog: str,
        formatter_class: type[argparse.HelpFormatter],
    ) -> CommandParser: ...


class TakesArguments(Protocol):
    """A parser, or a group of its arguments."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action: ...


class ArgumentGroup:
    """A group of a parser's arguments, which are on the parser's list too."""

    def __init__(self, group: TakesArguments, arguments: list[argparse.Action]) -> None:
        self._group = group
        self._arguments = arguments

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """As argparse."""
        self._arguments.append(self._group.add_argument(*names, **settings))
        return self._arguments[-1]


def given_name(text: str) -> str:
    """For `add_argument`: a name; an unset variable of a script is none."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def archive_url(text: str) -> str:
    """For `add_argument`: the URL of an archive; of a folder also its path, as `./archive`.

    A path shows by its first character: a bare word is more likely a bucket without its `s3://`.
    """
    return Path(text).absolute().as_uri() if text.startswith((".", "/")) else text


def add_command(
    commands: Commands, name: str, text: str, description: str, epilog: str, run: Run | None = None
) -> CommandParser:
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


def add_actions(command: CommandParser) -> Commands:
    return command.add_commands(title="actions", metavar="ACTION")


def add_repeated(
    parser: CommandParser, name: str, metavar: str, text: str, dest: str | None = None
) -> None:
    """Adds an option that may be repeated, and is a list."""
    parser.add_argument(name, action="append", default=[], dest=dest, metavar=metavar, help=text)


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON for programs")


def add_yes(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before what cannot be undone; needed without a terminal",
    )


def add_bucket(parser: CommandParser) -> None:
    """Adds the archive of a command that reads a bucket, and how to reach it."""
    parser.add_argument(
        "--remote",
        required=True,
        type=archive_url,
        metavar="URL",
        help="s3://bucket/prefix, file:///folder or ./folder",
    )
    add_bucket_access(parser)


def add_bucket_access(parser: CommandParser) -> None:
    parser.add_argument("--endpoint-url", metavar="URL", help="of an S3 that is not AWS")
    parser.add_argument("--region", help="of the bucket")
    parser.add_argument("--ca-file", metavar="FILE", help="authorities to trust, in PEM")

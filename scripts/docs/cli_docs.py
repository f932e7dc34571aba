"""docs/reference/cli.md, from the parsers of the command line; see doc_pages.py."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from textwrap import dedent

from strandline.broker.cli import make_parser
from strandline.broker.tools.commands.options import CommandParser

_INTRODUCTION = """\
# Command line

<!-- Made by `make docs`. Do not edit. -->

For everyone who types a command. The texts are those of `--help`; defaults are in [brackets].

Exit codes: 0 success; 1 failure; 2 invalid arguments; 3 the command looked and found a problem;
130 and 143 for a command that Ctrl-C or SIGTERM ended.

Replace the names in the examples with yours. Our tests run the examples that only read, but none
that needs a file or a program of yours.
"""

_EXAMPLES = "\nexamples:\n"
# What argparse adds by itself.
_EVERYWHERE = frozenset({"--help"})


def render() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(one) for one in parsers(make_parser("")))])


def parsers(parser: CommandParser) -> Iterator[CommandParser]:
    """A parser, and those of all commands below it."""
    yield parser
    for below in parser.commands.values():
        yield from parsers(below)


def _section(parser: CommandParser) -> str:
    remarks, _, examples = f"\n{parser.epilog or ''}".partition(_EXAMPLES)
    after = ""
    if examples:
        # What follows the examples begins at the margin again.
        found = re.match(r"((?: .*\n|\n)*)", examples)
        shown = found[1] if found else ""
        after, examples = examples[len(shown) :], shown
    parts = [
        f"## {parser.prog}\n",
        f"{_plain(parser.description or '')}\n",
        _table(parser),
        _prose(remarks),
        _block(examples),
        _prose(after),
    ]
    return "\n".join(part for part in parts if part.strip())


def _table(parser: CommandParser) -> str:
    rows = [_row(action) for action in parser.arguments if _is_shown(action)]
    if not rows:
        return ""
    return "".join(["| argument | meaning |\n| --- | --- |\n", *rows])


def _is_shown(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS
    return not (hidden or _EVERYWHERE & set(action.option_strings))


def _row(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    if action.nargs == 0:
        value = ""
    elif not value and action.option_strings:
        value = action.dest.upper()
    names = ", ".join(action.option_strings) or action.dest
    shown = f"{names} {value}".strip() if action.option_strings else str(value or names)
    help_text = (action.help or "") % {"default": action.default}
    return f"| `{_cell(shown)}` | {_cell(_plain(help_text))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """One line, in which `<` opens no tag and `*` and `_` begin no emphasis."""
    return re.sub(r"([<*_])", r"\\\1", " ".join(text.split()))


def _prose(text: str) -> str:
    """The text of an epilog as code, with its lines as they are."""
    stripped = dedent(text).strip("\n")
    return f"```text\n{stripped}\n```\n" if stripped.strip() else ""


def _block(text: str) -> str:
    """Examples: what is no command, nor the rest of one, is a remark."""
    if not text.strip():
        return ""
    lines = []
    goes_on = False
    for line in dedent(text).strip("\n").splitlines():
        is_command = re.match(r"\s*(strandline|echo|printf|.*\| *strandline)\b", line)
        if goes_on:
            lines.append(f"    {line.strip()}")
        else:
            lines.append(line.strip() if is_command or not line.strip() else f"# {line.strip()}")
        goes_on = line.rstrip().endswith("\\")
    return "\n".join(["```bash", *lines, "```", ""])

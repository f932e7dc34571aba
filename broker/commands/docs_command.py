"""`strandline docs`: the pages of docs/, which the wheel brings, on a terminal.

Messages name a page by its path in a checkout. This command takes that path, a part of it, or
words of a heading, so that a reader with the wheel alone has the page too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from strandline.broker.tools.commands.options import Commands, add_command
from strandline.storage.errors import InvalidConfig

_EXAMPLES = """
examples:
  strandline docs                       # all pages
  strandline docs runbooks/disk         # one page: its name, or its path in a message
  strandline docs "disk full"           # the sections with these words in their heading
"""

_FENCE = re.compile(r"^ *```")
_HEADING = re.compile(r"^(#+) (.*)$")


def add_docs(commands: Commands) -> None:
    """Adds the command `docs`."""
    command = add_command(
        commands,
        "docs",
        "read the documentation",
        "Prints a page of the documentation, or the sections whose heading has the given words.",
        _EXAMPLES,
        _docs,
    )
    command.add_argument("words", nargs="*", metavar="WORD", help="a page, or words of a heading")


def _docs(options: argparse.Namespace) -> int:
    print(find(pages(), " ".join(options.words)), end="")
    return 0


def pages() -> dict[str, str]:
    """Returns the text of each page by its path below docs/."""
    return dict(sorted(_pages_in(files("strandline") / "docs", "")))


def _pages_in(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _pages_in(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".md"):
            yield f"{prefix}{entry.name}", entry.read_text("utf-8")


def find(texts: Mapping[str, str], asked: str) -> str:
    """Returns the list of pages, a page, or sections. Raises InvalidConfig if nothing fits."""
    if not asked:
        return _listed(texts)
    path = "/" + asked.strip().removeprefix("docs/").removesuffix(".md") + ".md"
    found = [text for name, text in texts.items() if f"/{name}".endswith(path)]
    found = found or list(_sections(texts, asked))
    if not found:
        raise InvalidConfig(f"no page and no heading has {asked!r}; `strandline docs` lists pages")
    return "\n".join(text.rstrip("\n") + "\n" for text in found)


def _listed(texts: Mapping[str, str]) -> str:
    width = max(map(len, texts), default=0)
    lines = (f"{name:{width}}  {_headings(text)[0][2]}\n" for name, text in texts.items())
    return "".join(lines)


def _sections(texts: Mapping[str, str], asked: str) -> Iterator[str]:
    words = asked.lower().split()
    for name, text in texts.items():
        lines, headings = text.splitlines(), _headings(text)
        for place, (start, level, title) in enumerate(headings):
            if all(word in title.lower() for word in words):
                ends = (line for line, other, _ in headings[place + 1 :] if other <= level)
                section = "\n".join(lines[start : next(ends, len(lines))])
                yield f"docs/{name}\n\n{section}\n"


def _headings(text: str) -> list[tuple[int, int, str]]:
    """Returns the line, level and words of each; a remark in a block of commands is no heading."""
    found, is_code = [], False
    for number, line in enumerate(text.splitlines()):
        is_code ^= bool(_FENCE.match(line))
        match = None if is_code else _HEADING.match(line)
        if match:
            found.append((number, len(match[1]), match[2]))
    return found or [(0, 1, "")]

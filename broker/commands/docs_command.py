"""`strandline docs`: the pages of docs/, which the wheel brings, on a terminal.

Messages and alerts name a page as this command takes it, so that a reader with the wheel alone has
the page too. It also takes a path in a checkout, a part of a path, or words. Words are looked for
in the headings, and if no heading has them all, in the text. One section is printed, several are
listed. If no text has them all, those with most of them are listed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from strandline.broker.tools.commands.options import Commands, add_command
from strandline.storage.errors import InvalidConfig

_EXAMPLES = """
examples:
  strandline docs                       # all pages
  strandline docs runbooks/disk         # one page: its name, or its path in a checkout
  strandline docs how-to/restore#losing-every-disk   # one section: the anchor of its heading
  strandline docs disk full             # the section with these words in its heading
  strandline docs too few descriptors   # or in its text; of several sections the list
"""

# Sections to try if none has all words.
NEAREST_MAX = 10

_FENCE = re.compile(r"^ *```")
_HEADING = re.compile(r"^(#+) (.*)$")
# What a reader who searches wants first; pages that are generated or explain our choices come last.
_FOLDERS = ("tutorials", "how-to", "runbooks", "explanation", "reference", "contributing")


def add_docs(commands: Commands) -> None:
    """Adds the command `docs`."""
    command = add_command(
        commands,
        "docs",
        "read the documentation",
        "Prints a page of the documentation, or the sections that have the given words.",
        _EXAMPLES,
        _docs,
    )
    command.add_argument("words", nargs="*", metavar="WORD", help="a page, or words")


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
    named = list(_pages_named(texts, asked))
    if named:
        return "\n".join(text.rstrip("\n") + "\n" for text in named)
    sections = sorted(_sections(texts), key=lambda section: _place(section.name))
    found = [section for section in sections if section.is_headed(asked)]
    found = found or [section for section in sections if section.has(asked)]
    if not found:
        return _nearest(sections, asked)
    # A page or section that is found has those below its heading.
    outer = [one for one in found if not any(one.is_within(other) for other in found)]
    return outer[0].whole if len(outer) == 1 else "".join(section.line for section in outer)


def _nearest(sections: Sequence[_Section], asked: str) -> str:
    """Lists sections that have most of the words. Raises InvalidConfig if none has one."""
    most = max(section.count(asked) for section in sections)
    if not most:
        raise InvalidConfig(f"no page has {asked!r}; `strandline docs` lists pages")
    near = [section for section in sections if section.count(asked) == most]
    near.sort(key=lambda section: -section.count_in_title(asked))
    lines = "".join(section.line for section in near[:NEAREST_MAX])
    return f"No section has all of these words. The nearest:\n{lines}"


def _pages_named(texts: Mapping[str, str], asked: str) -> Iterator[str]:
    page, _, anchor = asked.strip().removeprefix("docs/").partition("#")
    path = f"/{page.removesuffix('.md')}.md"
    named = {name: text for name, text in texts.items() if f"/{name}".endswith(path)}
    if not anchor:
        yield from named.values()
    yield from (one.whole for one in _sections(named) if one.anchor == anchor)


def _place(name: str) -> tuple[int, str]:
    folder = name.partition("/")[0]
    return (_FOLDERS.index(folder) if folder in _FOLDERS else len(_FOLDERS), name)


def _listed(texts: Mapping[str, str]) -> str:
    width = max(map(len, texts), default=0)
    lines = (f"{name:{width}}  {_headings(text)[0][2]}\n" for name, text in texts.items())
    return "".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A heading of a page; `own` is its text up to the next heading, `text` with those below it."""

    name: str
    start: int
    end: int
    title: str
    own: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor that a code host and the site give to the heading."""
        return re.sub(r"[^\w\- ]", "", self.title).strip().lower().replace(" ", "-")

    @property
    def whole(self) -> str:
        return f"docs/{self.name}\n\n{self.text.rstrip()}\n"

    @property
    def line(self) -> str:
        return f"{self.name}#{self.anchor}\n"

    def count_in_title(self, asked: str) -> int:
        return sum(word in self.title.lower() for word in asked.lower().split())

    def count(self, asked: str) -> int:
        return sum(word in self.own.lower() for word in asked.lower().split())

    def is_headed(self, asked: str) -> bool:
        return self.count_in_title(asked) == len(asked.split())

    def is_within(self, other: _Section) -> bool:
        return self.name == other.name and other.start < self.start < other.end

    def has(self, asked: str) -> bool:
        return self.count(asked) == len(asked.split())


def _sections(texts: Mapping[str, str]) -> Iterator[_Section]:
    for name, text in texts.items():
        lines, headings = text.splitlines(), _headings(text)
        for place, (start, level, title) in enumerate(headings):
            after = headings[place + 1 :]
            end = next((line for line, other, _ in after if other <= level), len(lines))
            own_end = after[0][0] if after else len(lines)
            yield _Section(
                name=name,
                start=start,
                end=end,
                title=title,
                own="\n".join(lines[start:own_end]),
                text="\n".join(lines[start:end]),
            )


def _headings(text: str) -> list[tuple[int, int, str]]:
    """Returns the line, level and words of each; a remark in a block of commands is no heading."""
    found, is_code = [], False
    for number, line in enumerate(text.splitlines()):
        is_code ^= bool(_FENCE.match(line))
        match = None if is_code else _HEADING.match(line)
        if match:
            found.append((number, len(match[1]), match[2]))
    return found or [(0, 1, "")]

"""`strandline docs`: the pages of docs/, which the wheel brings, on a terminal.

Messages and alerts name a page as this command takes it, so that a reader with the wheel alone has
the page too. It also takes a path in a checkout, a part of a path, or words.

Words rank the sections by the full-text search of SQLite (FTS5, BM25): a word counts more the fewer
sections have it, and the larger its share of a section is. A word of a heading counts as several of
the text. Forms of a word are one (`delete`, `deleted`), and a word that no page has stands for one
that is spelt nearly so. The best sections are listed. If the first one scores far above the second,
it is printed before the others.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from strandline.broker.tools.commands.options import Commands, add_command
from strandline.storage.errors import InvalidConfig

_EXAMPLES = """
examples:
  strandline docs                       # all pages
  strandline docs runbooks/disk         # one page: its name, or its path in a checkout
  strandline docs how-to/restore#losing-every-disk   # one section: the anchor of its heading
  strandline docs disk full             # the sections that fit these words best
  strandline docs append failed reason=...   # or a line of the log
"""

# Sections that are listed.
LISTED_MAX = 10
# The first section is printed if it scores this many times what the next does.
_CLEARLY = 1.5

# What a word of the heading counts beside its place in the text.
_HEADING_WEIGHT = 8
# Decisions, lists of tests and the table of questions are seldom what a reader searches.
_SELDOM_SOUGHT = re.compile(r"decisions/|contributing/(?!recipes)")
_SELDOM_WEIGHT = 0.6
# How alike a word that no page has and the one that it stands for must be, as difflib counts.
_SPELLING = 0.85
# Not a path of a file: pages lie in folders below docs/.
_PAGE_NAME = re.compile(r"(?:docs/)?[a-z][\w-]*/[\w./-]*(?:#\S*)?|[\w-]+\.md(?:#\S*)?")

_WORD = re.compile(r"[^\W_]{2,}")
_STOP_WORD = re.compile(
    "an|and|are|as|at|be|becomes|by|can|do|does|for|from|has|have|how|if|in|is|it|its|may|must|my|of"
    "|on|or|should|that|the|there|this|to|was|what|when|where|which|who|why|will|with|you|your"
)

_FENCE = re.compile(r"^ *```")
_HEADING = re.compile(r"^(#+) (.*)$")


def add_docs(commands: Commands) -> None:
    """Adds the command `docs`."""
    command = add_command(
        commands,
        "docs",
        "read the documentation",
        "Prints a page of the documentation, or the sections that fit the given words best.",
        _EXAMPLES,
        _docs,
    )
    command.add_argument("words", nargs="*", metavar="WORD", help="a page, a property, or words")


def _docs(options: argparse.Namespace) -> int:
    print(Finder(pages()).find(" ".join(options.words)), end="")
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


class Finder:
    """Finds pages and sections in the texts of pages by their path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def find(self, asked: str) -> str:
        """Returns the list of pages, a page, or the best sections.

        Raises InvalidConfig if no section has one of the words.
        """
        if not asked:
            return _listed(self._texts)
        named = list(self._named(asked))
        if named:
            return "\n".join(text.rstrip("\n") + "\n" for text in named)
        if _PAGE_NAME.fullmatch(asked):
            raise InvalidConfig(f"there is no page {asked!r}{self._nearest_pages(asked)}")
        ranked = self._ranked(asked)
        if not ranked:
            raise InvalidConfig(f"no page has {asked!r}; `strandline docs` lists pages")
        first, *others = ranked[:LISTED_MAX]
        if others and first.score < _CLEARLY * others[0].score:
            return "".join(f"{one.section.place}\n" for one in (first, *others))
        lines = "".join(f"{one.section.place}\n" for one in others)
        return first.section.whole + (f"\nOther sections:\n{lines}" if lines else "")

    def _named(self, asked: str) -> Iterator[str]:
        """The pages of that path, the section of that anchor, or the sections of that property."""
        asked = asked.strip()
        page, _, anchor = asked.removeprefix("docs/").partition("#")
        path = f"/{page.removesuffix('.md')}.md"
        pages = {name: text for name, text in self._texts.items() if f"/{name}".endswith(path)}
        if not anchor:
            yield from pages.values()
        # The page of properties has a heading for each, in which the name is code.
        for one in self._sections:
            if (anchor and one.name in pages and one.anchor == anchor) or one.title.startswith(
                f"`{asked}`"
            ):
                yield one.whole

    def _nearest_pages(self, asked: str) -> str:
        page = asked.partition("#")[0]
        is_there = any(self._named(page))
        if is_there:
            return f": page {page!r} has no such section"
        known = [name.removesuffix(".md") for name in self._texts]
        near = get_close_matches(page.removesuffix(".md"), known, 3, _SPELLING)
        return f"; nearest: {', '.join(near)}" if near else "; `strandline docs` lists pages"

    def places(self, words: str) -> list[str]:
        """Returns the pages and anchors of the sections that have one of the words, best first."""
        return [one.section.place for one in self._ranked(words)]

    def _ranked(self, asked: str) -> list[_Ranked]:
        phrase = " ".join(_WORD.findall(asked))
        words = dict.fromkeys((phrase, *map(self._known, _words(asked))))
        rows = self._index.execute(
            "SELECT rowid, bm25(sections, ?, 1) FROM sections WHERE sections MATCH ?",
            (_HEADING_WEIGHT, " OR ".join(map(_quoted, words))),
        )
        # SQLite's best row has the lowest number.
        ranked = [
            _Ranked(section=self._sections[row], score=-number * self._sections[row].weight)
            for row, number in rows
        ]
        return sorted(ranked, key=lambda one: -one.score)

    def _known(self, word: str) -> str:
        """Returns the word, or if no page has it the one that is spelt nearly so."""
        found = self._index.execute("SELECT 1 FROM sections(?) LIMIT 1", (_quoted(word),))
        if found.fetchone() or not word.isalpha():
            return word
        known = {one for text in self._texts.values() for one in _words(text)}
        return next(iter(get_close_matches(word, known, 1, _SPELLING)), word)

    @cached_property
    def _sections(self) -> list[_Section]:
        return list(_sections(self._texts))

    @cached_property
    def _index(self) -> sqlite3.Connection:
        index = sqlite3.connect(":memory:")
        index.execute("CREATE VIRTUAL TABLE sections USING fts5(title, own, tokenize = 'porter')")
        index.executemany(
            "INSERT INTO sections (rowid, title, own) VALUES (?, ?, ?)",
            ((row, one.title, one.own) for row, one in enumerate(self._sections)),
        )
        return index


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if not _STOP_WORD.fullmatch(word)]


def _quoted(words: str) -> str:
    """A word or a phrase of a query, as FTS5 writes it."""
    return f'"{words}"'


def _listed(texts: Mapping[str, str]) -> str:
    width = max(map(len, texts), default=0)
    lines = (f"{name:{width}}  {_headings(text)[0][2]}\n" for name, text in texts.items())
    return "".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A heading of a page; `own` is its text up to the next heading, `text` with those below it."""

    name: str
    title: str
    own: str
    text: str

    @property
    def weight(self) -> float:
        return _SELDOM_WEIGHT if _SELDOM_SOUGHT.match(self.name) else 1

    @property
    def anchor(self) -> str:
        """The anchor that a code host and the site give to the heading."""
        return re.sub(r"[^\w\- ]", "", self.title).strip().lower().replace(" ", "-")

    @property
    def whole(self) -> str:
        return f"docs/{self.name}\n\n{self.text.rstrip()}\n"

    @property
    def place(self) -> str:
        return f"{self.name}#{self.anchor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    section: _Section
    score: float


def _sections(texts: Mapping[str, str]) -> Iterator[_Section]:
    for name, text in texts.items():
        lines, headings = text.splitlines(), _headings(text)
        for place, (start, level, title) in enumerate(headings):
            after = headings[place + 1 :]
            end = next((line for line, other, _ in after if other <= level), len(lines))
            own_end = after[0][0] if after else len(lines)
            yield _Section(
                name=name,
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

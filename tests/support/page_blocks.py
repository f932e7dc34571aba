"""The code blocks of the documents.

A block says its language. One that these tests do not run has a line above it, which readers see:

    *Not run by our tests: needs the AWS command line and an account.*

    ```bash

The line is hidden where it tells a reader nothing, because something else of ours runs the block:

    <!-- not run: tests/test_packaging.py installs the wheel -->
    ```bash

A block of `text` right after one of `bash` or `python` is what that one prints. Where a page says
Ctrl-C before a block, the reader stops the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Is written by `make bench-kafka`, with the properties that both brokers ran with.
WRITTEN_BY_BENCHMARKS = ROOT / "docs" / "explanation" / "performance.md"

# What a reader copies and runs, or gives to a program; the rest is to be looked at.
RUN = frozenset({"bash", "python", "sql", "properties", "json"})
# Of programs that are not here: each of these blocks says so.
NOT_OURS = frozenset({"yaml", "dockerfile", "ini", "nginx"})
LOOKED_AT = frozenset({"text", "mermaid"})

_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<hidden>.+?) -->\n"
    r"|^ *\*Not run by our tests: (?P<seen>[^\n]+)\.\*\n\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`line_number` is that of its fence; `output` is the text right after it, or empty.

    `not_run` is the reason, or empty; `is_hidden` says that a reader does not see it.
    """

    page: Path
    line_number: int
    language: str
    text: str
    not_run: str
    is_hidden: bool
    output: str
    stops_brokers: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line_number}"


def pages() -> list[Path]:
    """What a reader follows; of decisions and notes none is a manual."""
    front = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "localstack" / "README.md")
    manual = sorted((ROOT / "docs").rglob("*.md"))
    left_out = (WRITTEN_BY_BENCHMARKS, *(ROOT / "docs" / "decisions").glob("*.md"))
    return [*front, *(page for page in manual if page not in left_out)]


def blocks_of(page: Path) -> Iterator[Block]:
    """Every block of the page, in order."""
    text = page.read_text()
    found = list(_BLOCK.finditer(text))
    ends = [0, *(match.end() for match in found)]
    for number, match in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        is_output = (
            after is not None
            and match["language"] in ("bash", "python")
            and after["language"] == "text"
            and not text[match.end() : after.start()].strip()
        )
        yield Block(
            page=page,
            line_number=text.count("\n", 0, match.start("indent")) + 1,
            language=match["language"],
            text=re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            not_run=match["hidden"] or match["seen"] or "",
            is_hidden=match["hidden"] is not None,
            output=after["text"] if is_output and after is not None else "",
            stops_brokers="Ctrl-C" in text[ends[number] : match.start()],
        )


def every_block() -> Iterator[Block]:
    """Of all pages."""
    for page in pages():
        yield from blocks_of(page)


def runnable(page: Path, *languages: str) -> list[Block]:
    """Blocks of these languages that a test runs."""
    return [one for one in blocks_of(page) if one.language in languages and not one.not_run]


def is_of_spark(page: Path) -> bool:
    """Whether its Python needs a session of Spark, which tests/spark has."""
    return any(
        re.search(r"(?<!\w)spark\.", block.text) for block in runnable(page, "python", "sql")
    )


# Its examples are tried one by one: most of a block need things that are not there.
EXAMPLES = ROOT / "docs" / "reference" / "cli.md"

# From an empty folder to the end of the page, with brokers that the reader starts and stops.
JOURNEYS = (ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))

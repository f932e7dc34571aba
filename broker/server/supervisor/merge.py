"""Makes one page of metrics of those of several processes: each line gets the label `broker`.

    broker 1                        broker 2
    # TYPE requests_total counter   # TYPE requests_total counter
    requests_total{api="Fetch"} 7   requests_total{api="Fetch"} 2

    # TYPE requests_total counter
    requests_total{broker="1",api="Fetch"} 7
    requests_total{broker="2",api="Fetch"} 2

The lines of a family stand together, as Prometheus wants it, the families in the order in which
they come first. A line that says which broker it is about keeps that: a controller's do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

BROKER: Final = "broker"
_END: Final = "# EOF"
_OWN: Final = re.compile(r'[{,]broker="')
# Lines of a piece: it must not delay the processes' other business.
LINES_PER_PIECE: Final = 50


def merge_pages(pages: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of all pages, in pieces; the keys are the labels' values."""
    families: dict[str, list[tuple[str, list[str]]]] = {}
    heads: dict[str, str] = {}
    for node, page in pages.items():
        for name, head, lines in _families(page):
            heads.setdefault(name, head)
            families.setdefault(name, []).append((node, lines))
            yield ""
    for name, parts in families.items():
        piece = [heads[name]]
        for node, lines in parts:
            for line in lines:
                piece.append(f"{labelled(line, node)}\n")
                if len(piece) >= LINES_PER_PIECE:
                    yield "".join(piece)
                    piece = []
        yield "".join(piece)


def labelled(line: str, node: str) -> str:
    """Returns a sample with the label."""
    name, brace, labels = line.partition("{")
    if not brace:
        name, _, value = line.partition(" ")
        return f'{name}{{{BROKER}="{node}"}} {value}'
    if _OWN.search(line):
        return line
    return f'{name}{{{BROKER}="{node}",{labels}'


def _families(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields name, head and samples of each family of a page."""
    name, head, lines = "", "", list[str]()
    for line in page.splitlines():
        if line.startswith("# HELP "):
            if lines:
                yield name, head, lines
            name, head, lines = line.split(" ", 3)[2], f"{line}\n", []
        elif line.startswith("# TYPE "):
            head += f"{line}\n"
        elif line and line != _END:
            lines.append(line)
    if lines:
        yield name, head, lines

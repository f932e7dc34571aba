"""The dashboard as a picture: panels where its gridPos says, as SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

# Pixels of one unit of gridPos, and between two panels.
COLUMN_PX, UNIT_PX, GAP_PX = 41, 18, 6
COLUMNS = 24
# Of a letter, on average.
LETTER_PX, TITLE_LETTER_PX = 5.8, 6.2
# Lines of one panel; the largest.
LINES_MAX = 8
TICKS = 3

# The same hues on both grounds.
COLOURS = (
    "#3c8d40",
    "#d9930d",
    "#2f7fc1",
    "#c9473f",
    "#8e6bbf",
    "#1f9e9e",
    "#b0689a",
    "#8a8a2a",
)
STYLE = """
text{font:11px system-ui,sans-serif;fill:#24292f}
.s{font-size:10px;fill:#59636e}.b{font-weight:600}.v{font-size:20px;font-weight:600;fill:#2b7a33}
.p{fill:#fff;stroke:#d0d7de}.g{stroke:#d0d7de;stroke-width:.6}.a{fill:#f3f4f6}
path{fill:none;stroke-width:1.3;stroke-linejoin:round}
@media(prefers-color-scheme:dark){text{fill:#e6e8eb}.s{fill:#9aa4af}.v{fill:#6cc274}
.p{fill:#181b1f;stroke:#33383f}.g{stroke:#33383f}.a{fill:#0f1114}}
"""

# (seconds since the beginning, value)
Points: TypeAlias = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel, as its legend names it."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard with what its queries answered; `kind` is row, stat, timeseries."""

    kind: str
    title: str
    unit: str
    x: int
    y: int
    width: int
    height: int
    is_name_shown: bool
    lines: Sequence[Line]

    @classmethod
    def of(cls, panel: Mapping[str, Any], lines: Sequence[Line]) -> Panel:
        """`panel` is that of the dashboard's JSON."""
        place = panel["gridPos"]
        return cls(
            kind=panel["type"],
            title=panel["title"],
            unit=panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short"),
            x=place["x"],
            y=place["y"],
            width=place["w"],
            height=place["h"],
            is_name_shown=panel.get("options", {}).get("textMode") == "name",
            lines=lines,
        )


@dataclass(frozen=True, slots=True)
class _Box:
    """Pixels of a panel."""

    left: float
    top: float
    width: float
    height: float


def svg_of(panels: Sequence[Panel], length_s: float, step_s: float) -> str:
    """Returns the picture of panels over so many seconds, which were asked for at each step."""
    width = COLUMNS * COLUMN_PX + GAP_PX
    height = max(one.y + one.height for one in panels) * UNIT_PX + GAP_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="The panels of the dashboard over a broker at work">',
        f"<style>{STYLE}</style>",
        f'<rect class="a" width="{width}" height="{height}"/>',
    ]
    draw = {"row": _row, "stat": _stat}
    for panel in panels:
        box = _Box(
            left=panel.x * COLUMN_PX + GAP_PX,
            top=panel.y * UNIT_PX + GAP_PX,
            width=panel.width * COLUMN_PX - GAP_PX,
            height=panel.height * UNIT_PX - GAP_PX,
        )
        if panel.kind in draw:
            parts += draw[panel.kind](panel, box)
        else:
            parts += _time_series(panel, box, length_s, step_s)
    return "\n".join([*parts, "</svg>", ""])


def _text(left: float, top: float, text: str, style: str = "", more: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{left:.0f}" y="{top:.0f}"{kind}{more}>{escape(text)}</text>'


def _row(panel: Panel, box: _Box) -> Iterator[str]:
    yield _text(box.left, box.top + 10, panel.title, "b title")


def _frame(panel: Panel, box: _Box) -> Iterator[str]:
    yield (
        f'<rect class="p" x="{box.left}" y="{box.top}" width="{box.width}"'
        f' height="{box.height}" rx="2"/>'
    )
    room_px = (box.width - 16) / (TITLE_LETTER_PX * len(panel.title))
    more = f' style="font-size:{11 * room_px:.1f}px"' if room_px < 1 else ""
    yield _text(box.left + 8, box.top + 15, panel.title, "b title", more)


def _stat(panel: Panel, box: _Box) -> Iterator[str]:
    yield from _frame(panel, box)
    for place, line in enumerate(panel.lines):
        left = box.left + 8 + place * box.width / len(panel.lines)
        told = line.name if panel.is_name_shown else told_as(line.points[-1][1], panel.unit)
        yield _text(left, box.top + 40, told, "v")
        if not panel.is_name_shown:
            yield _text(left, box.top + 56, line.name, "s")


def _time_series(panel: Panel, box: _Box, length_s: float, step_s: float) -> Iterator[str]:
    yield from _frame(panel, box)
    left, top = box.left + 58, box.top + 24
    width, height = box.width - 70, box.height - 56
    shown = [one for one in panel.lines if any(math.isfinite(value) for _, value in one.points)]
    if not shown:
        middle = ' text-anchor="middle"'
        yield _text(box.left + box.width / 2, box.top + box.height / 2, "No data", "s", middle)
        return
    shown = sorted(shown, key=lambda one: -max(_finite(one.points)))[:LINES_MAX]
    step = _step(max(max(_finite(one.points)) for one in shown), panel.unit)
    highest = step * TICKS
    for tick in range(TICKS + 1):
        y = top + height * (1 - tick / TICKS)
        yield f'<path class="g" d="M{left} {y:.1f}h{width}"/>'
        more = ' text-anchor="end"'
        yield _text(left - 6, y + 3, told_as(step * tick, panel.unit), "s", more)
    for minute in range(int(length_s // 60) + 1):
        x = left + width * minute * 60 / length_s
        yield _text(x, top + height + 13, f"{minute}:00", "s", ' text-anchor="middle"')
    for line, colour in zip(shown, COLOURS, strict=False):
        drawn, last_s = [], -math.inf
        for at_s, value in line.points:
            if not math.isfinite(value):
                continue
            x = left + width * at_s / length_s
            y = top + height * (1 - value / highest)
            # A value that is missing is a gap.
            drawn.append(f"{'L' if at_s - last_s < 1.5 * step_s else 'M'}{x:.0f} {y:.1f}")
            last_s = at_s
        yield f'<path stroke="{colour}" d="{"".join(drawn)}"/>'
    yield from _legend(shown, box)


def _legend(lines: Sequence[Line], box: _Box) -> Iterator[str]:
    """The names that one line has room for."""
    left, top = box.left + 8, box.top + box.height - 7
    for line, colour in zip(lines, COLOURS, strict=False):
        right = left + 14 + LETTER_PX * len(line.name)
        if right > box.left + box.width - 10:
            yield _text(left, top, "…", "s")
            return
        yield f'<path stroke="{colour}" d="M{left:.0f} {top - 3:.0f}h10"/>'
        yield _text(left + 14, top, line.name, "s")
        left = right + 10


def _finite(points: Points) -> list[float]:
    return [value for _, value in points if math.isfinite(value)]


def _step(highest: float, unit: str) -> float:
    """Returns a round distance of ticks, so that TICKS of them reach the highest value."""
    if not highest:
        return 1.0
    wanted = highest / TICKS
    if unit == "s" and 20 < wanted <= 600:
        return next(seconds for seconds in (30.0, 60.0, 120.0, 300.0, 600.0) if seconds >= wanted)
    base = 1024.0 if unit == "bytes" else 10.0
    scale = base ** math.floor(math.log(wanted, base))
    digits = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1024)
    return next(digit * scale for digit in digits if digit * scale >= wanted)


def told_as(value: float, unit: str) -> str:
    """Returns a value as the dashboard's unit has it."""
    if unit == "bool_yes_no":
        return "Yes" if value else "No"
    if unit == "s" and value >= 60:
        return f"{value / 60:.3g} min"
    base, names = {
        "bytes": (1024, (" B", " KiB", " MiB", " GiB", " TiB")),
        "Bps": (1000, (" B/s", " kB/s", " MB/s", " GB/s")),
        "cps": (1000, (" c/s", "K c/s")),
        "reqps": (1000, (" req/s", "K req/s")),
        "ms": (1000, (" ms", " s")),
        "s": (1000, (" s",)),
    }.get(unit, (1000, ("", " K", " Mil", " Bil")))
    place = 0
    while abs(value) >= base and place < len(names) - 1:
        value /= base
        place += 1
    return f"{value:.3g}{names[place]}"

"""Damage of every kind to one object of an archive: cut, grown, flipped, gone, or another's.

Another's is the worst: whole in itself, under a name that is not its own. It is one of the same
archive, or of another cluster's, and of those that there are one of nearly the same size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Of the objects that could take its place, as many of the nearest size are thought of.
NEAREST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was done to which object."""

    key: str
    kind: str

    def answer(self, ask: Callable[[], T], *errors: type[Exception]) -> T | None:
        """What was asked for; None for an error that names the object, any other is raised."""
        try:
            return ask()
        except errors as error:
            if self.key not in str(error):
                raise AssertionError(f"{self} is not named: {error}") from error
            return None


class Vandal:
    """Damages objects of one archive, each for a while; `others` is another cluster's archive."""

    def __init__(self, archive: Path, others: Path, source: random.Random) -> None:
        self._archive = archive
        self._random = source
        self._objects = _objects_below(archive)
        self._others = _objects_below(others)

    @contextmanager
    def damage(self) -> Iterator[Damage]:
        """One object is damaged inside, and whole again behind."""
        while True:
            path = self._random.choice(self._objects)
            content = path.read_bytes()
            kind = self._random.choice(["gone", "cut", "begun", "flip", "grown", "same", "other"])
            changed = self._changed(path, content, kind)
            if changed != content:
                break
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)
        try:
            yield Damage(key=path.relative_to(self._archive).as_posix(), kind=kind)
        finally:
            path.write_bytes(content)

    def _changed(self, path: Path, content: bytes, kind: str) -> bytes | None:
        source = self._random
        match kind:
            case "gone":
                return None
            case "cut":
                return content[: source.randrange(len(content))]
            case "begun":
                return content[source.randrange(len(content)) :]
            case "flip":
                changed = bytearray(content)
                changed[source.randrange(len(content))] ^= 1 << source.randrange(8)
                return bytes(changed)
            case "grown":
                return content + source.randbytes(source.randint(1, 50))
        like = [one for one in self._objects if one != path] if kind == "same" else self._others
        near = sorted(
            (one for one in like if _sort_of(one) == _sort_of(path)),
            key=lambda one: abs(one.stat().st_size - len(content)),
        )
        return source.choice(near[:NEAREST]).read_bytes() if near else content


def _objects_below(folder: Path) -> Sequence[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file() and one.stat().st_size)


def _sort_of(path: Path) -> str:
    """Logs, metas, pieces, manifests, pages, descriptions."""
    if path.suffix == ".json":
        return path.name
    return path.suffix or path.parent.name

"""One mapping of an image, of which two images share all that an entry does not change.

    base   most values, shared by many images and never changed
    top    what changed since, at most TOP_MAX keys, or a part of the base: copied for each change

A copy of a `dict` with 5,000 topics takes 0.3 ms: not the keys, but the reference that each value
gets. So an image copies `top`, and a new base is made now and then; of 500,000 ACLs more rarely.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

TOP_MAX = 256
TOP_PART = 64
# In `top`: the base has the key, this section has not.
_GONE: Final[Any] = object()


class ImageSection(Mapping[KeyT, ValueT]):
    """An immutable mapping: a base, and the changes on top of it."""

    __slots__ = ("_base", "_top")

    def __init__(self) -> None:
        self._base: dict[KeyT, ValueT] = {}
        self._top: dict[Any, Any] = {}

    def __getitem__(self, key: KeyT) -> ValueT:
        value: ValueT = self._top.get(key, _GONE)
        if value is not _GONE:
            return value
        if key in self._top:
            raise KeyError(key)
        return self._base[key]

    def __contains__(self, key: object) -> bool:
        return self._top[key] is not _GONE if key in self._top else key in self._base

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._whole())

    def __len__(self) -> int:
        gone = sum(value is _GONE for value in self._top.values())
        return len(self._base) + sum(key not in self._base for key in self._top) - gone

    def items(self) -> ItemsView[KeyT, ValueT]:
        return self._whole().items()

    def values(self) -> ValuesView[ValueT]:
        return self._whole().values()

    def _whole(self) -> dict[KeyT, ValueT]:
        if not self._top:
            return self._base
        whole = self._base | self._top
        for key, value in self._top.items():
            if value is _GONE:
                del whole[key]
        return whole

    def __repr__(self) -> str:
        return f"ImageSection({self._whole()!r})"

    # --- for its delta alone -----------------------------------------------------------------

    def draft(self) -> ImageSection[KeyT, ValueT]:
        """Returns a copy that may be changed until it is finished."""
        drafted = ImageSection[KeyT, ValueT]()
        drafted._base, drafted._top = self._base, self._top.copy()
        return drafted

    def put(self, key: KeyT, value: ValueT) -> None:
        self._top[key] = value

    def drop(self, key: KeyT) -> None:
        if key in self._base:
            self._top[key] = _GONE
        else:
            self._top.pop(key, None)

    def finish(self) -> None:
        if len(self._top) > max(TOP_MAX, len(self._base) // TOP_PART):
            self._base, self._top = self._whole(), {}


class SectionDelta(Generic[KeyT, ValueT]):
    """What changed in a section: `before` is all of it as it was, `after` as it is now."""

    __slots__ = ("_changed", "_is_drafted", "after", "before")

    def __init__(
        self, before: ImageSection[KeyT, ValueT], after: ImageSection[KeyT, ValueT]
    ) -> None:
        self.before = before
        self.after = after
        self._is_drafted = False
        # In the order of the changes.
        self._changed: dict[KeyT, None] = {}
        if after is not before and not before:
            self._changed = dict.fromkeys(after)
        elif after is not before:
            self._changed = dict.fromkeys(key for key in before if key not in after)
            for key, value in after.items():
                known = before.get(key)
                if known is not value and known != value:
                    self._changed[key] = None

    def __bool__(self) -> bool:
        return bool(self._changed)

    def __iter__(self) -> Iterator[KeyT]:
        """The keys whose value changed, those that are gone too."""
        return iter(tuple(self._changed))

    def __contains__(self, key: KeyT) -> bool:
        """Whether the value of that key changed."""
        return key in self._changed

    def changed(self) -> list[ValueT]:
        """Returns what is new or was altered, as it is now."""
        return [self.after[key] for key in self._changed if key in self.after]

    def gone(self) -> list[ValueT]:
        """Returns what is not there any more, as it was."""
        return [self.before[key] for key in self._changed if key not in self.after]

    def set(self, key: KeyT, value: ValueT | None) -> None:
        """Sets the value; None drops the key."""
        if not self._is_drafted:
            self.after, self._is_drafted = self.after.draft(), True
        self._changed[key] = None
        if value is not None:
            self.after.put(key, value)
            return
        self.after.drop(key)
        if key not in self.before:
            del self._changed[key]

    def finish(self) -> ImageSection[KeyT, ValueT]:
        """Returns `after`, which takes no further changes: `before` if there were none."""
        if not self._changed:
            return self.before
        if self._is_drafted:
            self.after.finish()
            self._is_drafted = False
        return self.after

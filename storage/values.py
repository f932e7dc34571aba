"""Dataclasses whose methods are compiled when they are first called.

`dataclasses.dataclass` writes and compiles six functions for each frozen class while it is
imported, 0.6 ms. A broker imports some 200 such classes and has used 30 of them when it says that
it is ready, so that was half of its start. Here a class costs what its slots cost, and

    class statement           slots, and for each method a stand-in
    first call of a stand-in  the method is compiled, takes its place, and is called

Behaviour is that of the standard library's with slots=True: `fields`, `replace`, `match`, pickle
and `inspect.signature` find what they look for. What no class of ours asks for is not there: no
slots, no `__init__`, `unsafe_hash`, InitVar.
"""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

__all__ = ["dataclass", "field", "replace"]

_T = TypeVar("_T")
# A class that is being made or changed: its attributes are no business of the type checker.
_Class = Any

_Method = Callable[..., Any]

_COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *,
        slots: bool,
        frozen: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        order: bool = False,
    ) -> Callable[[type[_T]], type[_T]]:
        """The decorator; as `dataclasses.dataclass`, and `slots=True` is a must."""
        assert slots, "a class without slots wants dataclasses.dataclass"

        def decorate(cls: type[_T]) -> type[_T]:
            return _make(cls, frozen=frozen, kw_only=kw_only, eq=eq, order=order)

        return decorate


def _make(cls: _Class, *, frozen: bool, kw_only: bool, eq: bool, order: bool) -> _Class:
    annotations: dict[str, str] = inspect.get_annotations(cls)
    body = dict(cls.__dict__)
    assert "__slots__" not in body, f"{cls} has slots already"
    # Slots take the names; what was assigned to them in the class statement is kept for later.
    defaults = {
        name: body.pop(name)
        for name in annotations
        if name in body and not _is_class_variable(annotations[name])
    }
    inherited = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
    body["__slots__"] = tuple(
        name
        for name, annotation in annotations.items()
        if name not in inherited and not _is_class_variable(annotation)
    )
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    plan = _Plan(defaults, frozen=frozen, kw_only=kw_only)
    body["__dataclass_fields__"] = _Late("__dataclass_fields__", plan.fields)
    body["__dataclass_params__"] = _Late("__dataclass_params__", plan.params)
    if "__init__" not in body:
        body["__signature__"] = _Signature(plan)
    body.setdefault("__match_args__", _Late("__match_args__", plan.match_args))
    body.setdefault("__init__", plan.stand_in("__init__", plan.init))
    body.setdefault("__repr__", _repr)
    if eq:
        # As in Python itself: who says when two are equal says what their hash is.
        if "__eq__" not in body:
            body["__eq__"] = plan.stand_in("__eq__", plan.comparison)
        if body.get("__hash__") is None:
            body["__hash__"] = plan.stand_in("__hash__", plan.hash) if frozen else None
    if order:
        assert not body.keys() & _COMPARISONS.keys(), f"{cls} orders itself"
        for name in _COMPARISONS:
            body[name] = plan.stand_in(name, plan.comparison)
    if frozen:
        assert not body.keys() & {"__setattr__", "__delattr__"}, f"{cls} is frozen"
        body["__setattr__"], body["__delattr__"] = _refuse_to_set, _refuse_to_delete
        body.setdefault("__getstate__", _get_state)
        body.setdefault("__setstate__", _set_state)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    plan.owner = made
    return made


def _is_class_variable(annotation: object) -> bool:
    return str(annotation).startswith(("ClassVar", "typing.ClassVar"))


class _Plan:
    """How the methods of one class are made. Two threads that make one at once make the same."""

    __slots__ = ("_defaults", "_frozen", "_kw_only", "owner")

    def __init__(self, defaults: dict[str, object], *, frozen: bool, kw_only: bool) -> None:
        self.owner: _Class = None
        self._defaults = defaults
        self._frozen = frozen
        self._kw_only = kw_only

    def stand_in(self, name: str, make: Callable[[str], _Method]) -> _Method:
        """A method that puts the real one into its place when it is called."""

        def first_call(*arguments: Any, **named: Any) -> object:
            method = make(name)
            setattr(self.owner, name, method)
            return method(*arguments, **named)

        first_call.__name__ = name
        return first_call

    # --- what is known of the fields -----------------------------------------------------------

    def fields(self) -> dict[str, Field[Any]]:
        """All fields, those of base classes first."""
        own = self._described()
        found: dict[str, Field[Any]] = {}
        for base in self.owner.__mro__[-1:0:-1]:
            found |= getattr(base, "__dataclass_fields__", {})
        found |= own.__dataclass_fields__
        return found

    def params(self) -> object:
        return self._described(frozen=self._frozen).__dataclass_params__

    def _described(self, *, frozen: bool = False) -> _Class:
        """A class with this one's own fields alone, as the standard library sees it."""
        body = {
            "__annotations__": inspect.get_annotations(self.owner),
            "__module__": self.owner.__module__,
            # Without one, a text would be made of its signature.
            "__doc__": "fields",
            **self._defaults,
        }
        bare = type(self.owner.__name__, (), body)
        return dataclasses.dataclass(
            init=False,
            repr=False,
            eq=False,
            match_args=False,
            kw_only=self._kw_only,
            frozen=frozen,
        )(bare)

    def match_args(self) -> tuple[str, ...]:
        return tuple(row.name for row in self._parameters() if not row.kw_only)

    def _parameters(self) -> list[Field[Any]]:
        return [row for row in dataclasses.fields(self.owner) if row.init]

    # --- methods -------------------------------------------------------------------------------

    def init(self, _name: str) -> _Method:
        rows = dataclasses.fields(self.owner)
        names: dict[str, object] = {"MISSING": MISSING}
        body = [self._assignment(row, names) for row in rows]
        if hasattr(self.owner, "__post_init__"):
            body.append("self.__post_init__()")
        first = [_parameter(row) for row in rows if row.init and not row.kw_only]
        named = [_parameter(row) for row in rows if row.init and row.kw_only]
        parameters = ["self", *first, *(["*", *named] if named else [])]
        made = self._compiled("__init__", parameters, [line for line in body if line], names)
        made.__annotations__ = {row.name: row.type for row in rows if row.init} | {"return": None}
        return made

    def _assignment(self, row: Field[Any], names: dict[str, object]) -> str:
        """The line that sets a field, and in `names` what it refers to; empty if nothing does."""
        value = row.name
        if row.default_factory is not MISSING:
            names[f"new_{row.name}"] = row.default_factory
            value = f"new_{row.name}()"
            if row.init:
                value = f"{value} if {row.name} is MISSING else {row.name}"
        elif row.default is not MISSING:
            names[f"default_{row.name}"] = row.default
            value = row.name if row.init else f"default_{row.name}"
        elif not row.init:
            return ""
        if not self._frozen:
            return f"self.{row.name} = {value}"
        # Past the `__setattr__` that refuses, straight to the slot.
        names[f"set_{row.name}"] = getattr(self.owner, row.name).__set__
        return f"set_{row.name}(self, {value})"

    def comparison(self, name: str) -> _Method:
        sign = _COMPARISONS.get(name, "==")
        rows = [row.name for row in dataclasses.fields(self.owner) if row.compare]
        ours, theirs = (_tuple_of(owner, rows) for owner in ("self", "other"))
        body = [
            "if other.__class__ is self.__class__:",
            f" return {ours} {sign} {theirs}",
            "return NotImplemented",
        ]
        return self._compiled(name, ["self", "other"], body, {})

    def hash(self, name: str) -> _Method:
        rows = [
            row.name
            for row in dataclasses.fields(self.owner)
            if (row.compare if row.hash is None else row.hash)
        ]
        return self._compiled(name, ["self"], [f"return hash({_tuple_of('self', rows)})"], {})

    def _compiled(
        self, name: str, parameters: list[str], body: list[str], names: dict[str, object]
    ) -> _Method:
        """A function of this text, made inside another one that knows `names`."""
        lines = "\n".join(f"  {line}" for line in body or ["pass"])
        text = (
            f"def make({', '.join(names)}):\n"
            f" def {name}({', '.join(parameters)}):\n{lines}\n"
            f" return {name}"
        )
        found: dict[str, Any] = {}
        exec(text, sys.modules[self.owner.__module__].__dict__, found)
        made = cast("_Method", found["make"](**names))
        made.__qualname__ = f"{self.owner.__qualname__}.{name}"
        return made


def _parameter(row: Field[Any]) -> str:
    if row.default_factory is not MISSING:
        return f"{row.name}=MISSING"
    return row.name if row.default is MISSING else f"{row.name}=default_{row.name}"


def _tuple_of(owner: str, names: list[str]) -> str:
    return "(" + "".join(f"{owner}.{name}," for name in names) + ")"


class _Late:
    """A class attribute that is worked out when it is first asked for."""

    __slots__ = ("_make", "_name")

    def __init__(self, name: str, make: Callable[[], object]) -> None:
        self._name = name
        self._make = make

    def __get__(self, instance: object, owner: type) -> object:
        made = self._make()
        # Where it stands; `owner` may be a class that inherits it. Nowhere, if another thread was
        # faster: it has made the same.
        for cls in owner.__mro__:
            if cls.__dict__.get(self._name) is self:
                setattr(cls, self._name, made)
        return made


class _Signature:
    """The signature of a class whose `__init__` may not be made yet, for `inspect`."""

    __slots__ = ("_plan",)

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if owner is not self._plan.owner:
            raise AttributeError("__signature__")  # A subclass may begin in another way.
        whole = inspect.signature(self._plan.init("__init__"))
        return whole.replace(parameters=list(whole.parameters.values())[1:])


# --- methods that are the same for all ---------------------------------------------------------


@reprlib.recursive_repr()
def _repr(self: _Class) -> str:
    shown = (
        f"{row.name}={getattr(self, row.name)!r}" for row in dataclasses.fields(self) if row.repr
    )
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: _Class, name: str, value: object) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: _Class, name: str) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_fixed(instance: _Class, name: str) -> bool:
    """Whether a frozen class gave it the attribute; a plain subclass may add its own."""
    cls = type(instance)
    return "__dataclass_fields__" in cls.__dict__ or name in cls.__dataclass_fields__


def _get_state(self: _Class) -> list[object]:
    return [getattr(self, row.name) for row in dataclasses.fields(self)]


def _set_state(self: _Class, state: list[object]) -> None:
    for row, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, row.name, value)

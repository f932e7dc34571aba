"""Our `dataclass` does what the standard library's does; each promise is asked of both."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import pytest

import strandline
from strandline.storage import values

Make = Callable[..., Any]
T = TypeVar("T")

# Of a typed module: the standard library's and ours look the same to mypy.
STANDARD: Make = dataclasses.dataclass
OURS: Make = values.dataclass


@pytest.fixture(params=[STANDARD, OURS], ids=["standard", "ours"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def _offsets(make: Make) -> Any:
    @make(frozen=True, slots=True, kw_only=True)
    class Offsets:
        LIMIT: ClassVar[int] = 7
        first: int
        last: int = 5
        names: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="-", compare=False, repr=False)

        def width(self) -> int:
            return self.last - self.first

    return Offsets


def test_a_value_has_its_fields_and_methods(make: Make) -> None:
    value = _offsets(make)(first=3)
    assert (value.first, value.last, value.names, value.note) == (3, 5, [], "-")
    assert value.width() == 2
    assert value.LIMIT == 7
    assert value.names is not _offsets(make)(first=3).names
    assert not hasattr(value, "__dict__")


def test_a_frozen_value_cannot_be_changed(make: Make) -> None:
    value = _offsets(make)(first=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.first = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.first
    assert value.first == 3


def test_values_are_equal_by_the_fields_that_count(make: Make) -> None:
    cls = _offsets(make)
    assert cls(first=1, note="a") == cls(first=1, note="b")
    assert cls(first=1) != cls(first=2)
    assert cls(first=1) != 1
    assert "note" not in repr(cls(first=1))
    assert repr(cls(first=1)).endswith("Offsets(first=1, last=5, names=[])")


def test_wrong_arguments_are_refused(make: Make) -> None:
    cls = _offsets(make)
    with pytest.raises(TypeError, match="first"):
        cls()
    with pytest.raises(TypeError):
        cls(1)
    with pytest.raises(TypeError, match="other"):
        cls(first=1, other=2)


def test_frozen_values_are_keys_and_changeable_ones_are_not(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Key:
        topic: str
        partition: int = 0

    @make(slots=True)
    class Counter:
        count: int = 0

    @make(slots=True, eq=False)
    class Owner:
        count: int = 0

    assert {Key("a"): 1}[Key("a", 0)] == 1
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError):
        hash(counter)
    assert Owner() != Owner()
    assert len({Owner(), Owner()}) == 2


def test_a_class_keeps_what_it_says_itself(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Name:
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name) and other.text.lower() == self.text.lower()

        def __hash__(self) -> int:
            return hash(self.text.lower())

        def __repr__(self) -> str:
            return f"<{self.text}>"

    assert Name("A") == Name("a")
    assert len({Name("A"), Name("a")}) == 1
    assert repr(Name("A")) == "<A>"


def test_ordered_values_compare_field_by_field(make: Make) -> None:
    @make(frozen=True, slots=True, order=True)
    class Version:
        major: int
        minor: int = 0

    assert sorted([Version(2), Version(1, 5), Version(1)]) == [
        Version(1),
        Version(1, 5),
        Version(2),
    ]
    assert Version(1) <= Version(1) < Version(1, 1)
    assert Version(2) >= Version(2) > Version(1)
    with pytest.raises(TypeError):
        assert Version(1) < 1


def test_derived_fields_are_set_after_the_others(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Area:
        width: int
        height: int = 2
        area: int = dataclasses.field(init=False, repr=False)
        unit: str = dataclasses.field(init=False, default="m")

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.width * self.height)

    assert Area(3).area == 6
    assert Area(3).unit == "m"
    assert dataclasses.replace(Area(3), height=4).area == 12
    with pytest.raises(TypeError):
        Area(3, area=1)


def test_a_class_that_inherits_has_all_fields(make: Make) -> None:
    @make(frozen=True, slots=True, kw_only=True)
    class Base:
        name: str
        size: int = 1

    @make(frozen=True, slots=True, kw_only=True)
    class Longer(Base):
        extra: str
        size: int = 2

    class Plain(Base):
        def twice(self) -> int:
            return 2 * self.size

    assert [row.name for row in dataclasses.fields(Longer)] == ["name", "size", "extra"]
    assert Longer(name="a", extra="b").size == 2
    assert Longer(name="a", extra="b") != Base(name="a", size=2)
    assert Plain(name="a", size=4).twice() == 8
    assert Plain(name="a") == Plain(name="a")
    assert Base(name="a") == Base(name="a")


def test_a_generic_class_stays_generic(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Box(Generic[T]):
        content: T

    assert Box(3) == Box(3)
    assert Box[int].__origin__ is Box


def test_values_match_patterns(make: Make) -> None:
    @make(frozen=True, slots=True)
    class Point:
        x: int
        y: int = dataclasses.field(kw_only=True)

    match Point(1, y=2):
        case Point(x, y=2):
            assert x == 1
        case _:
            pytest.fail("not matched")
    assert Point.__match_args__ == ("x",)


@OURS(frozen=True, slots=True)
class Sent:
    """Known by its module, as pickle wants it."""

    name: str
    count: int = 1


def test_a_value_survives_a_pipe_and_a_copy() -> None:
    assert pickle.loads(pickle.dumps(Sent("a", 2))) == Sent("a", 2)
    assert copy.copy(Sent("a")) == copy.deepcopy(Sent("a")) == Sent("a")


def test_the_signature_is_known_before_the_first_value(make: Make) -> None:
    assert str(inspect.signature(_offsets(make))).startswith("(*, first: 'int', last: 'int' = 5,")

    class Begun(_offsets(make)):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__(first=0, last=size)

    assert list(inspect.signature(Begun).parameters) == ["size"]
    assert Begun(3).last == 3


def test_a_method_is_compiled_when_it_is_first_called() -> None:
    cls = _offsets(OURS)
    stand_in = cls.__init__
    cls(first=1)
    compiled = cls.__init__
    assert compiled is not stand_in
    cls(first=2)
    assert cls.__init__ is compiled


def test_many_threads_may_be_the_first() -> None:
    cls = _offsets(OURS)
    made: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(cls(first=n)))  # type: ignore[misc]
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value.first for value in made) == list(range(8))  # type: ignore[attr-defined]


def _value_classes() -> Iterator[Any]:
    """The classes of the broker, of storage and of retention that `values.dataclass` made."""
    for part in ("broker", "storage", "retention"):
        package = importlib.import_module(f"strandline.{part}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for cls in vars(module).values():
                if (
                    isinstance(cls, type)
                    and cls.__module__ == module.__name__
                    # Who writes an `__init__` of their own has none.
                    and "__signature__" in vars(cls)
                ):
                    yield cls


def test_every_class_of_the_product_takes_what_the_standard_library_would_take() -> None:
    """Compiles all of them: a mistake in one that is rarely used shows here."""
    checked = 0
    for cls in _value_classes():
        fields = dataclasses.fields(cls)
        options = {
            row.name: (row.init, row.kw_only, row.default, row.default_factory) for row in fields
        }
        body = {
            name: dataclasses.field(
                init=init,
                kw_only=kw_only,
                **({} if default is dataclasses.MISSING else {"default": default}),
                **({} if factory is dataclasses.MISSING else {"default_factory": factory}),
            )
            for name, (init, kw_only, default, factory) in options.items()
        }
        rows = [(row.name, row.type, body[row.name]) for row in fields]
        expected = dataclasses.make_dataclass(cls.__name__, rows)
        ours, theirs = inspect.signature(cls), inspect.signature(expected)
        assert list(ours.parameters) == list(theirs.parameters), cls
        for name, parameter in ours.parameters.items():
            wanted = theirs.parameters[name]
            assert parameter.kind is wanted.kind, (cls, name)
            has_default = parameter.default is not inspect.Parameter.empty
            assert has_default == (wanted.default is not inspect.Parameter.empty), (cls, name)
        assert cls.__match_args__ == expected.__match_args__, cls
        checked += 1
    assert checked > 200, strandline.__file__


def test_threads_that_meet_at_the_first_use_of_a_class_get_the_same() -> None:
    """The slower one finds that what it was to put in its place is no longer there."""

    @OURS(frozen=True, slots=True, kw_only=True)
    class Row:
        number: int = 1

    late = Row.__dict__["__dataclass_fields__"]
    make = late._make

    def overtaken() -> object:
        made = make()
        Row.__dataclass_fields__ = made
        return made

    late._make = overtaken
    assert late.__get__(None, Row) == Row.__dataclass_fields__
    assert Row().number == 1

"""The schema language: a message class is its own field table.

    class FindCoordinatorRequest(Request, api=ApiKey.FIND_COORDINATOR):
        key: str = wire.string("0-3", default="")
        key_type: int = wire.int8("1+", default=0)
        coordinator_keys: Sequence[str] = wire.array(wire.string, "4+", default=())

Tables call this module `wire`. Each line is one field, in wire order: attribute, type, the versions
that carry it, and optionally the versions that allow null, the tag, the default. mypy checks the
annotation against the wire type (`x: str = wire.int32()` is an error), and reads the class as a
keyword-only frozen dataclass. `codegen` generates one flat function per version and direction.

* A field that a version does not carry has its default after decoding, and is left out of encoding.
* Nested structs use the versions of the enclosing message, also for their own ranges, as in Kafka's
  documents.
* Instances are frozen for mypy only: at run time they are plain slotted objects, because a frozen
  dataclass costs three times as much to create, and a broker creates millions.
* Sequences are tuples when empty and lists otherwise; `==` ignores the difference.
* `records` decode to slices of the request's own buffer: valid as long as it is. A `byte_string` is
  copied: it outlives the request, and a slice object is larger than what is usually in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    overload,
)

from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey, ApiSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound="Struct")

Buffer: TypeAlias = bytes | bytearray | memoryview
# For `isinstance`: a union in place would be built at every call.
IN_MEMORY: Final = (bytes, bytearray, memoryview)
ZERO_UUID: Final = uuid.UUID(int=0)

# Tags from here on are fields that Kafka does not have; clients skip unknown tags.
OWN_TAG_MIN: Final = 1000

# Above every message version: the open end of "7+".
VERSION_OPEN: Final = 32767

_REQUIRED: Final = object()


class SizedPart(Protocol):
    """Bytes that are not in memory, such as a range of a file sent by `sendfile`."""

    @property
    def length(self) -> int: ...


Part: TypeAlias = Buffer | SizedPart


class Field:
    """One field of a table, resolved."""

    __slots__ = (
        "default",
        "first",
        "has_default",
        "kind",
        "last",
        "name",
        "nullable_first",
        "nullable_last",
        "tag",
    )

    def __init__(
        self,
        kind: WireType[object],
        versions: str = "0+",
        *,
        nullable: str | None = None,
        tag: int | None = None,
        default: object = _REQUIRED,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.first, self.last = _parse_versions(versions)
        self.nullable_first, self.nullable_last = _parse_versions(nullable) if nullable else (1, 0)
        self.tag = tag
        self.has_default = default is not _REQUIRED
        self.default = kind.zero if default is _REQUIRED else default

    def is_in(self, version: int) -> bool:
        return self.first <= version <= self.last

    def is_nullable(self, version: int) -> bool:
        return self.nullable_first <= version <= self.nullable_last


def _parse_versions(text: str) -> tuple[int, int]:
    if text.endswith("+"):
        return int(text[:-1]), VERSION_OPEN
    first, _, last = text.partition("-")
    return int(first), int(last or first)


# --- types -----------------------------------------------------------------------------------


class WireType(Generic[T_co]):
    """The encoding of one Python type. A call declares a field of it."""

    __slots__ = ("name", "zero")

    def __init__(self, name: str, zero: T_co) -> None:
        self.name = name
        self.zero = zero

    @overload
    def __call__(
        self: WireType[T], versions: str = ..., *, tag: int | None = ..., default: T = ...
    ) -> T: ...
    @overload
    def __call__(
        self: WireType[T],
        versions: str = ...,
        *,
        nullable: str,
        tag: int | None = ...,
        default: T | None = ...,
    ) -> T | None: ...
    def __call__(self, versions: str = "0+", **settings: Any) -> Any:
        return Field(self, versions, **settings)

    def __repr__(self) -> str:
        return self.name


class Fixed(WireType[T_co]):
    """A value of fixed width, read and written by `struct`; runs of them share one call."""

    __slots__ = ("code", "size_bytes")

    def __init__(self, name: str, zero: T_co, code: str, size_bytes: int) -> None:
        super().__init__(name, zero)
        self.code = code
        self.size_bytes = size_bytes


class ArrayOf(WireType[Sequence[T_co]]):
    """A counted sequence."""

    __slots__ = ("element",)

    def __init__(self, element: WireType[T_co]) -> None:
        super().__init__(f"array({element.name})", ())
        self.element = element


class StructOf(WireType[T_co]):
    """A nested struct."""

    __slots__ = ("struct",)

    def __init__(self, struct: type[Struct]) -> None:
        # None where a version does not carry the struct; its field's annotation says so.
        super().__init__(struct.__name__, None)  # type: ignore[arg-type]
        self.struct = struct


boolean = Fixed("bool", False, "?", 1)
int8 = Fixed("int8", 0, "b", 1)
int16 = Fixed("int16", 0, "h", 2)
uint16 = Fixed("uint16", 0, "H", 2)
int32 = Fixed("int32", 0, "i", 4)
uint32 = Fixed("uint32", 0, "I", 4)
int64 = Fixed("int64", 0, "q", 8)
float64 = Fixed("float64", 0.0, "d", 8)
uuid_ = Fixed("uuid", ZERO_UUID, "16s", 16)
# For classes where "this version has no topic ids" must differ from "the client sent the zero id".
# Decoding a version that carries the field always yields a UUID; None is encoded as zero.
optional_uuid: Fixed[uuid.UUID | None] = Fixed("uuid", None, "16s", 16)

string = WireType("string", "")
byte_string: WireType[bytes] = WireType("bytes", b"")
records: WireType[memoryview | None] = WireType("records", None)
# Records of a fetch response: parts that may be in a file, with their size in `records_bytes`.
record_parts: WireType[Sequence[Part]] = WireType("records", ())


# --- fields of types with a parameter --------------------------------------------------------


@overload
def array(
    element: WireType[T] | type[T],
    versions: str = ...,
    *,
    tag: int | None = ...,
    default: Sequence[T] = ...,
) -> Sequence[T]: ...
@overload
def array(
    element: WireType[T] | type[T],
    versions: str = ...,
    *,
    nullable: str,
    tag: int | None = ...,
    default: Sequence[T] | None = ...,
) -> Sequence[T] | None: ...
def array(element: Any, versions: str = "0+", **settings: Any) -> Any:
    """Declares a sequence of a wire type or of structs."""
    of = element if isinstance(element, WireType) else StructOf(element)
    return Field(ArrayOf(of), versions, **settings)


@overload
def struct(cls: type[S], versions: str = ..., *, tag: int | None = ..., default: S = ...) -> S: ...
@overload
def struct(
    cls: type[S],
    versions: str = ...,
    *,
    nullable: str,
    tag: int | None = ...,
    default: S | None = ...,
) -> S | None: ...
def struct(cls: type[S], versions: str = "0+", **settings: Any) -> Any:
    """Declares a nested struct."""
    return Field(StructOf(cls), versions, **settings)


def optional_struct(
    cls: type[S], versions: str = "0+", *, tag: int | None = None, default: S | None = None
) -> S | None:
    """Declares a tagged struct: None is not sent, and a missing one is None."""
    declared: Any = Field(StructOf(cls), versions, tag=tag, default=default)
    return declared  # type: ignore[no-any-return]


def unserialized(*, default: T) -> T:
    """Declares an attribute that no version carries; encoders may use it."""
    declared: Any = Field(int64, "1-0", default=default)
    return declared  # type: ignore[no-any-return]


# --- structs ---------------------------------------------------------------------------------


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        uint16,
        int32,
        uint32,
        int64,
        float64,
        uuid_,
        optional_uuid,
        string,
        byte_string,
        records,
        record_parts,
        array,
        struct,
        optional_struct,
        unserialized,
    ),
)
class StructMeta(type):
    """Turns a field table into a slotted class with a keyword constructor."""

    fields: Mapping[str, Field]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, object],
        api: ApiKey | None = None,
    ) -> StructMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        body = {key: value for key, value in namespace.items() if key not in fields}
        for key, field in fields.items():
            field.name = key
        body["__slots__"] = tuple(fields)
        cls = super().__new__(mcs, name, bases, body)
        cls.fields = fields
        if api is not None:
            cls.spec = EVERY_SPEC[api]  # type: ignore[attr-defined]  # declared by Message
        if fields:
            # mypy rejects an assignment to __init__; here and below the metaclass does it.
            cls.__init__ = _make_late_constructor(cls, fields)  # type: ignore[misc]
        return cls


def _make_late_constructor(cls: type, fields: Mapping[str, Field]) -> Callable[..., None]:
    """Compiles the constructor at its first call, and replaces itself with it.

    There are some two hundred structs, and a starting broker creates no instances of most of them.
    """

    def construct(self: object, **values: object) -> None:
        constructor = _make_constructor(fields)
        cls.__init__ = constructor  # type: ignore[misc]
        constructor(self, **values)

    return construct


def _make_constructor(fields: Mapping[str, Field]) -> Callable[..., None]:
    arguments = ", ".join(
        f"{name}=_defaults[{name!r}]" if field.has_default else name
        for name, field in fields.items()
    )
    body = "\n ".join(f"self.{name} = {name}" for name in fields)
    namespace: dict[str, object] = {
        "_defaults": {name: field.default for name, field in fields.items()}
    }
    exec(f"def __init__(self, *, {arguments}):\n {body}\n", namespace)
    constructor = namespace["__init__"]
    assert callable(constructor)
    return constructor


class Struct(metaclass=StructMeta):
    """A nested struct; compared by value, with its fields in the repr."""

    if TYPE_CHECKING:
        fields: ClassVar[Mapping[str, Field]]
        __slots__: ClassVar[tuple[str, ...]]

    def values(self) -> Iterator[tuple[str, object]]:
        """Yields attribute names and values, in the order of the table."""
        for name in type(self).fields:
            yield name, getattr(self, name)

    def replaced(self, **changes: object) -> Self:
        """Returns a copy with these attributes changed."""
        return type(self)(**{**dict(self.values()), **changes})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _comparable(getattr(self, name)) == _comparable(getattr(other, name))
            for name in type(self).fields
        )

    __hash__ = None  # type: ignore[assignment]  # sequences inside may be lists

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.values())
        return f"{type(self).__name__}({inside})"


def _comparable(value: object) -> object:
    return [_comparable(item) for item in value] if isinstance(value, tuple | list) else value


class Message(Struct):
    """A request or response body."""

    if TYPE_CHECKING:
        spec: ClassVar[ApiSpec]


class Request(Message):
    """A request body: `class MetadataRequest(Request, api=ApiKey.METADATA)`.

    `elements_max` bounds the elements of all its arrays, and its tags, together, before they are
    decoded. A frame of 100 MiB, as Produce may have, can hold sixteen million partitions.
    """

    # Four times the most that any handler answers.
    elements_max: ClassVar[int] = 400_000


class Response(Message):
    """A response body."""

"""Parser of Spark's column types (`origin STRING, dep_time INT`) into Arrow types. Pure.

The names inside the types (`element`, `key`, `value`) are Spark's, which compares schemas exactly.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from strandline.storage.errors import InvalidConfig

# A text is that of a comment.
_TOKEN = re.compile(
    r"""\s*(`[^`]+`|[A-Za-z_]\w*|\d+|[<>(),:]|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")""",
    re.DOTALL,
)
# Deeper than this is a mistake, or an attack on the parser.
DEPTH_MAX = 32


def parse_columns(text: str) -> Any:
    """Returns the `pyarrow` struct type of `name TYPE, name TYPE`. Raises InvalidConfig.

    Takes what Spark shows of a schema, too: `struct<name:type,name:type>`.
    """
    parser = _Parser(text)
    fields = parser.columns()
    parser.expect_end()
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise InvalidConfig(f"option valueSchema names a column twice: {text}")
    return pa.struct([pa.field(name, kind) for name, kind in fields])


def list_of(element: Any) -> Any:
    """Returns a list type with the field name of Spark's arrays."""
    return pa.list_(pa.field("element", element))


def map_of(key: Any, value: Any) -> Any:
    """Returns a map type with the field names of Spark's maps."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def timestamp() -> Any:
    """Returns the type of Spark's timestamps: microseconds in UTC."""
    return pa.timestamp("us", tz="UTC")


_SIMPLE = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": timestamp(),
}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            found = _TOKEN.match(text, position)
            if found is None:
                raise self._error(
                    f"{text[position:].strip()[:20]!r} is no type; a name with other signs than"
                    " letters, digits and _ needs backticks (`a.b` INT)"
                )
            self._tokens.append(found[1])
            position = found.end()
        self._tokens.reverse()

    def columns(self) -> list[tuple[str, Any]]:
        """The columns of the value, with `struct<...>` around them or not."""
        is_struct = [one.lower() for one in self._tokens[-2:]] == ["<", "struct"]
        if is_struct:
            del self._tokens[-2:]
        return self.fields(">" if is_struct else "")

    def fields(self, end: str, depth: int = 0) -> list[tuple[str, Any]]:
        """Parses `name TYPE` or `name: TYPE`, separated by commas, up to `end`."""
        fields: list[tuple[str, Any]] = []
        while True:
            name = self._next("a column name").strip("`")
            self._skip(":")
            fields.append((name, self._type(depth)))
            if self._skip("not"):
                self._expect("null")
            if self._skip("comment") and self._next("a comment")[0] not in "'\"":
                raise self._error("a comment is a text, such as 'of the airport'")
            if not self._skip(","):
                break
        if end:
            self._expect(end)
        return fields

    def expect_end(self) -> None:
        if self._tokens:
            raise self._error(f"{self._tokens[-1]!r} was not expected")

    def _type(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"types are nested more than {DEPTH_MAX} deep")
        name = self._next("a type").lower()
        if name == "array":
            self._expect("<")
            element = self._type(depth + 1)
            self._expect(">")
            return list_of(element)
        if name == "map":
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            return map_of(key, value)
        if name == "struct":
            self._expect("<")
            return pa.struct([pa.field(*one) for one in self.fields(">", depth + 1)])
        if name in ("decimal", "numeric", "dec"):
            return self._decimal()
        if name in ("varchar", "char", "character"):
            # Of the length that a producer should keep to; Kafka's values are what they are.
            self._expect("(")
            self._number()
            self._expect(")")
            return pa.string()
        if name not in _SIMPLE:
            raise self._error(f"{name!r} is no type; there are {', '.join(_SIMPLE)}, ...")
        return _SIMPLE[name]

    def _decimal(self) -> Any:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            scale = self._number() if self._skip(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(f"decimal({precision}, {scale}) is impossible")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        text = self._next("a number")
        if not text.isdecimal():
            raise self._error(f"{text!r} is no number")
        return int(text)

    def _next(self, what: str) -> str:
        if not self._tokens:
            raise self._error(f"{what} is missing at the end")
        return self._tokens.pop()

    def _skip(self, token: str) -> bool:
        if self._tokens and self._tokens[-1].lower() == token:
            self._tokens.pop()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            found = repr(self._tokens[-1]) if self._tokens else "the end"
            raise self._error(f"{token!r} is expected where {found} is")

    def _error(self, detail: str) -> InvalidConfig:
        return InvalidConfig(
            f"option valueSchema: {detail}; expected something like"
            f" 'origin STRING, dep_time INT', given {self._text!r}"
        )

"""Reads ASN.1 in DER, as far as certificates need it: definite lengths, tags of one byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

INTEGER, OCTET_STRING, OBJECT_ID = 0x02, 0x04, 0x06
SEQUENCE, SET = 0x30, 0x31
# Lengths in more bytes than that are above 4 GiB.
_LENGTH_BYTES_MAX = 4


# Known ones have a dozen, and Python does not print a number of 2 KB.
_OBJECT_ID_BYTES_MAX = 256


class MalformedDer(ValueError):
    """Bytes that are no DER."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes

    def expect(self, tag: int) -> Element:
        """Returns itself. Raises MalformedDer if the tag is another one."""
        if self.tag != tag:
            raise MalformedDer(f"tag {self.tag:#04x} where {tag:#04x} was expected")
        return self

    def children(self) -> Iterator[Element]:
        """Yields the elements of the content. Raises MalformedDer."""
        return elements(self.content)


def elements(encoded: bytes) -> Iterator[Element]:
    """Yields the elements one after another. Raises MalformedDer."""
    position = 0
    while position < len(encoded):
        start = position
        if len(encoded) - position < 2:
            raise MalformedDer("it ends within a header")
        tag, length = encoded[position], encoded[position + 1]
        position += 2
        if tag & 0x1F == 0x1F:
            raise MalformedDer("a tag of several bytes")
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= _LENGTH_BYTES_MAX or len(encoded) - position < size:
                raise MalformedDer("a length without an end")
            length = int.from_bytes(encoded[position : position + size], "big")
            position += size
        end = position + length
        if end > len(encoded):
            raise MalformedDer("it ends within an element")
        yield Element(tag, encoded[position:end], encoded[start:end])
        position = end


def first(encoded: bytes) -> Element:
    """Returns the first element. Raises MalformedDer."""
    for element in elements(encoded):
        return element
    raise MalformedDer("it is empty")


def object_id(content: bytes) -> str:
    """Returns an object identifier in numbers with dots. Raises MalformedDer."""
    arcs: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(value)
            value = 0
    if not arcs or content[-1] & 0x80 or len(content) > _OBJECT_ID_BYTES_MAX:
        raise MalformedDer("an object identifier without an end")
    top = min(arcs[0] // 40, 2)
    return ".".join(map(str, [top, arcs[0] - 40 * top, *arcs[1:]]))

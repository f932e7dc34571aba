"""Small self-describing JSON objects with a checksum.

    {"format": "strandline-topic", "version": 1, ...fields..., "crc32c": "9f0c2d11"}

The checksum is CRC-32C over the canonical JSON (sorted keys, no spaces, ASCII) of everything
but `crc32c` itself, so re-indenting a file by hand keeps it valid and changing it does not.

Readers trust no field: each is fetched through `Fields`, which answers a missing or mistyped
one with CorruptFile that names the document and the field.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Buffer
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# A root manifest has a few hundred entries of half a KiB, a page not more. Anything of this size
# under one of our names was not written by us.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
# Offsets, times and sizes have 64 bits everywhere else: a larger integer was not written by us, and
# would overflow there.
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1
# Object names within their folder, see keys.py; a key has 1024 bytes at most.
_FILE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")


def fields_of(value: DataclassInstance) -> dict[str, Json]:
    """The JSON fields of a dataclass; checksums are hexadecimal, fields at their default absent."""
    found: dict[str, Json] = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if content != field.default:
            found[field.name] = f"{content:08x}" if field.name.endswith("crc32c") else content
    return found


def encode_document(format_name: str, version: int, fields: Mapping[str, Json]) -> bytes:
    """Returns the document as bytes: canonical JSON with its checksum."""
    document: dict[str, Json] = {"format": format_name, "version": version, **fields}
    canonical = _canonical(document)
    checksum = f"{crc32c.crc32c(canonical):08x}"
    if min(document) > "crc32c":
        # It sorts first: the longest documents are not encoded a second time.
        return b'{"crc32c":"%b",%b\n' % (checksum.encode(), canonical[1:])
    document["crc32c"] = checksum
    return _canonical(document) + b"\n"


def decode_document(content: Buffer, format_name: str, versions: range, source: str = "") -> Fields:
    """Returns the fields of a document of this format.

    `source` names the object in messages. Raises CorruptFile if it is not whole or something else,
    UnsupportedFormat if its version is not in `versions`.
    """
    what = source or format_name
    document = _parse(content, what)
    found = document.get("format")
    if found != format_name:
        raise CorruptFile(f"{what}: format is {found!r}, expected {format_name!r}")
    version = document.get("version")
    if type(version) is not int:
        raise CorruptFile(f"{what}: version is {version!r}")
    # The version before the checksum: a later version may compute it differently.
    if version not in versions:
        raise UnsupportedFormat.of_version(f"{what}: {format_name}", version, versions)
    stated = document.pop("crc32c", None)
    try:
        computed = _checksum(document)
    except RecursionError as error:
        # JSON that is nested so deeply that it can be parsed but not encoded again.
        raise CorruptFile(f"{what}: nested too deeply for a document: {error}") from error
    if stated != computed:
        raise CorruptFile(f"{what}: checksum is {computed}, the document says {stated!r}")
    return Fields(document, what)


def _parse(content: Buffer, what: str) -> dict[str, Json]:
    if len(content) > DOCUMENT_BYTES_MAX:
        raise CorruptFile(f"{what}: {len(content)} bytes are more than such a document can have")
    try:
        document = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what}: no JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptFile(f"{what}: JSON, but no object")
    return document


def _canonical(document: Mapping[str, Json]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _checksum(document: Mapping[str, Json]) -> str:
    return f"{crc32c.crc32c(_canonical(document)):08x}"


class Fields:
    """Typed access to a JSON object; methods raise CorruptFile if the field has another type."""

    __slots__ = ("_fields", "_what")

    def __init__(self, fields: Mapping[str, Json], what: str) -> None:
        self._fields = fields
        self._what = what

    @property
    def json(self) -> Mapping[str, Json]:
        """The object itself, for a format with a decoder of its own."""
        return self._fields

    def integer(self, name: str) -> int:
        found = self._get(name)
        if type(found) is not int or not _INTEGER_MIN <= found <= _INTEGER_MAX:
            raise self._wrong(name, "an integer", found)
        return found

    def count(self, name: str) -> int:
        """Returns an integer that is not negative: a size or a count."""
        found = self.integer(name)
        if found < 0:
            raise self._wrong(name, "a number of bytes or things", found)
        return found

    def optional_integer(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.integer(name)

    def text(self, name: str) -> str:
        found = self._get(name)
        if not isinstance(found, str):
            raise self._wrong(name, "text", found)
        return found

    def object_key(self, name: str, folder: str, *suffixes: str) -> str:
        """The key of an object that lies in `folder` itself and ends with one of `suffixes`.

        Any other key is refused before a store is asked: it is foreign, or no key at all.
        """
        found = self.text(name)
        file_name = found[len(folder) :]
        # A page has thousands of keys, so this check must be fast.
        is_there = found.startswith(folder) and file_name.endswith(suffixes)
        if not is_there or not _FILE_NAME.fullmatch(file_name):
            expected = f"an object in {folder} that ends with {' or '.join(suffixes)}"
            raise self._wrong(name, expected, found)
        return found

    def boolean(self, name: str) -> bool:
        found = self._get(name)
        if not isinstance(found, bool):
            raise self._wrong(name, "true or false", found)
        return found

    def optional_boolean(self, name: str) -> bool | None:
        return None if self._fields.get(name) is None else self.boolean(name)

    def uuid(self, name: str) -> uuid.UUID:
        found = self.text(name)
        try:
            return uuid.UUID(found)
        except ValueError as error:
            raise self._wrong(name, "a UUID", found) from error

    def crc(self, name: str) -> int:
        """Returns a 32-bit checksum, written as eight hexadecimal digits."""
        found = self.text(name)
        try:
            return int(found, 16)
        except ValueError as error:
            raise self._wrong(name, "a checksum", found) from error

    def texts_by_name(self, name: str) -> dict[str, str]:
        found = self._get(name)
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise self._wrong(name, "an object of texts", found)
        return {key: str(text) for key, text in found.items()}

    def __contains__(self, name: str) -> bool:
        """Whether the document has this field; later releases added some."""
        return name in self._fields

    def integer_pairs(self, name: str) -> Iterator[tuple[int, int]]:
        for row in self.rows(name, 2):
            yield row[0], row[1]

    def integers(self, name: str) -> list[int]:
        found = self._items(name)
        cells = _integers_in(found)
        if len(cells) != len(found):
            raise self._wrong(name, "a list of integers", found)
        return cells

    def rows(self, name: str, width: int) -> Iterator[list[int]]:
        """Lists of exactly `width` integers: tables that would be long as objects."""
        for found in self._items(name):
            row = _integers_in(found) if isinstance(found, list) and len(found) == width else []
            if len(row) != width:
                raise self._wrong(name, f"a list of rows of {width} integers", found)
            yield row

    def objects(self, name: str) -> Iterator[Fields]:
        for number, found in enumerate(self._items(name)):
            if not isinstance(found, dict):
                raise self._wrong(name, "a list of objects", found)
            yield Fields(found, f"{self._what}: {name}[{number}]")

    def optional_objects(self, name: str) -> Iterator[Fields]:
        return self.objects(name) if name in self else iter(())

    def _items(self, name: str) -> list[Json]:
        found = self._get(name)
        if not isinstance(found, list):
            raise self._wrong(name, "a list", found)
        return found

    def _get(self, name: str) -> Json:
        try:
            return self._fields[name]
        except KeyError:
            raise CorruptFile(f"{self._what}: field {name!r} is missing") from None

    def _wrong(self, name: str, expected: str, found: Json) -> CorruptFile:
        return CorruptFile(f"{self._what}: {name} is {str(found)[:80]!r}, expected {expected}")


def _integers_in(found: Sequence[Json]) -> list[int]:
    return [n for n in found if type(n) is int and _INTEGER_MIN <= n <= _INTEGER_MAX]

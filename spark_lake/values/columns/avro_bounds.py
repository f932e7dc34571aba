"""Detection of Avro schemas with which a few bytes overload a task. Pure; takes parsed schemas.

    a type within itself     each level of a value is a call: 100 KB end a process
    a list of nothing        items that take no byte: six bytes are any number of them

Avro allows both, and any producer may write such values.
"""

from __future__ import annotations

from typing import Any

from strandline.spark_lake.values.schema.avro_logical_types import parts_of

NOTHING_LISTED = "has a list whose items take no byte, of which a few bytes could be any number"


def contains_itself(schema: Any, above: tuple[str, ...]) -> bool:
    """Returns whether a schema refers to a type from within it; `above` are the enclosing types."""
    if isinstance(schema, str):
        return schema in above
    if isinstance(schema, dict) and schema["type"] == "record":
        above = (*above, schema["name"])
    return any(contains_itself(one, above) for one in parts_of(schema))


def lists_nothing(schema: Any, sizes: dict[str, bool]) -> bool:
    """Whether items of a list take no byte; `sizes` says so of the named types seen so far."""
    kind = schema["type"] if isinstance(schema, dict) else None
    if kind == "record":
        # A record within itself takes a byte, or no producer could write one.
        sizes[schema["name"]] = False
    if any(lists_nothing(one, sizes) for one in parts_of(schema)):
        return True
    match kind:
        case "record":
            sizes[schema["name"]] = all(_is_nothing(one, sizes) for one in parts_of(schema))
        case "fixed":
            sizes[schema["name"]] = schema["size"] == 0
        case "array":
            return _is_nothing(schema["items"], sizes)
    return False


def _is_nothing(schema: Any, sizes: dict[str, bool]) -> bool:
    if isinstance(schema, list):  # its branch number takes a byte
        return False
    if isinstance(schema, str):
        return schema == "null" or sizes.get(schema, False)
    kind = schema["type"]
    if kind in ("record", "fixed"):
        return sizes[schema["name"]]
    return _is_nothing(kind, sizes)

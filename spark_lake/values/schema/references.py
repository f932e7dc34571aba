"""Resolution of references between schemas of a registry into one self-contained schema.

    {"schema": ..., "references": [{"name": "shop.Address", "subject": "...", "version": 3}]}

A reference is known by its name in the schema: of an Avro type, or of a file that a Protobuf file
imports. Referenced schemas may have references, too. A name means the same schema in all of them,
the first one found, as for a registry's own serializers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strandline.spark_lake.values.schema.avro_logical_types import named_types
from strandline.spark_lake.values.schema.registry import Reference, RegisteredSchema, Registry
from strandline.storage.errors import InvalidConfig

# Each costs a request the first time.
REFERENCES_MAX = 200
# fastavro's marks in parsed schemas.
_MARKS = ("__fastavro_parsed", "__named_schemas")


def referred(
    registry: Registry, schema: RegisteredSchema, *, serialized: bool = False
) -> list[tuple[str, RegisteredSchema]]:
    """Returns the schemas that `schema` refers to, by name; each comes after its own references.

    Raises InvalidConfig for too many references, and what `Registry.version` raises.
    """
    found: dict[str, RegisteredSchema] = {}
    met: set[str] = set()

    def follow(references: tuple[Reference, ...]) -> None:
        for one in references:
            if one.name in met:
                continue
            if len(met) >= REFERENCES_MAX:
                raise InvalidConfig(
                    f"a schema of the registry refers to more than {REFERENCES_MAX} others"
                )
            met.add(one.name)
            referred_to = registry.version(one.subject, one.version, serialized=serialized)
            follow(referred_to.references)
            found[one.name] = referred_to

    follow(schema.references)
    return list(found.items())


def avro_text(
    registry: Registry, schema: RegisteredSchema, parse: Callable[[Any, dict[str, Any]], Any]
) -> str:
    """Avro's JSON with each referenced type defined where it is first used.

    `parse` is fastavro's; it adds to the known types. Raises what `referred` and `parse` raise, and
    ValueError for invalid JSON.
    """
    if not schema.references:
        return schema.text
    known: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for _, one in referred(registry, schema):
        types |= named_types(parse(json.loads(one.text), known))
    return json.dumps(_standing_alone(parse(json.loads(schema.text), known), types, set()))


def _standing_alone(schema: Any, types: dict[str, Any], defined: set[str]) -> Any:
    """Defines types at their first use in a parsed schema; `defined` collects their full names."""
    if isinstance(schema, list):
        return [_standing_alone(one, types, defined) for one in schema]
    if isinstance(schema, str):
        if schema in defined or schema not in types:
            return schema
        schema = types[schema]
    if "name" in schema:
        defined.add(schema["name"])
    made = {name: part for name, part in schema.items() if name not in _MARKS}
    for name in ("type", "items", "values"):
        if name in made:
            made[name] = _standing_alone(made[name], types, defined)
    if "fields" in made:
        made["fields"] = [
            {**one, "type": _standing_alone(one["type"], types, defined)} for one in made["fields"]
        ]
    return made

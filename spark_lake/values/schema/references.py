"""Schemas of a registry that refer to others there, as one that stands alone.

    {"schema": ..., "references": [{"name": "shop.Address", "subject": "...", "version": 3}]}

A reference has the name by which the schema means it: of an Avro type, or of a file that a Protobuf
file imports. What is referred to may refer to others. A name means one schema in all of them, the
first that is met, as for a registry's own serializers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strandline.spark_lake.values.schema.avro_logical_types import named_types
from strandline.spark_lake.values.schema.registry import Reference, RegisteredSchema, Registry
from strandline.storage.errors import InvalidConfig

# Each costs a request the first time; a schema of more is no schema of values.
REFERENCES_MAX = 200
# What fastavro leaves in a schema that it parsed.
_MARKS = ("__fastavro_parsed", "__named_schemas")


def referred(
    registry: Registry, schema: RegisteredSchema, *, serialized: bool = False
) -> list[tuple[str, RegisteredSchema]]:
    """What `schema` refers to by its name there, each behind what it refers to itself.

    Raises InvalidConfig for what the registry does not have, and what `Registry.version` raises.
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
    """Avro's JSON with each type that it refers to where it is first needed.

    `parse` is fastavro's, with the types that are known so far, to which it adds. Raises what
    `referred` and `parse` raise, and ValueError for what is no JSON.
    """
    if not schema.references:
        return schema.text
    known: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for _, one in referred(registry, schema):
        types |= named_types(parse(json.loads(one.text), known))
    return json.dumps(_standing_alone(parse(json.loads(schema.text), known), types, set()))


def _standing_alone(schema: Any, types: dict[str, Any], defined: set[str]) -> Any:
    """`schema` as fastavro parsed it: names in it are full. `defined` grows in its order."""
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

"""The principal of a forwarded request, as Kafka's DefaultKafkaPrincipalBuilder writes it.

version 0 i16 | type compact string | name compact string | by a delegation token bool | tags
"""

from __future__ import annotations

from typing import Final

from strandline.broker.protocol.formats.versioned import read_version, read_whole, write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Struct

_VERSION: Final = 0


class PrincipalData(Struct):
    """Kafka's DefaultPrincipalData."""

    principal_type: str = wire.string()
    name: str = wire.string()
    token_authenticated: bool = wire.boolean(default=False)


def write_principal(principal_type: str, name: str) -> bytes:
    """Encodes a principal that did not log in by a delegation token."""
    data = PrincipalData(principal_type=principal_type, name=name)
    return write_struct(data, _VERSION, flexible_from=0)


def read_principal(data: memoryview) -> PrincipalData:
    """Decodes the principal. Raises MalformedRequest, also for a version that Kafka lacks."""
    version = read_version(data)
    if version != _VERSION:
        raise MalformedRequest(f"principal data of version {version}; expected {_VERSION}")
    return read_whole(PrincipalData, version, data, flexible_from=0)

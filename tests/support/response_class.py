"""The class of the response to each API."""

from __future__ import annotations

import sys

from strandline.broker.protocol.codec.codec import request_class
from strandline.broker.protocol.schema.schema import Response


def response_class(api_key: int) -> type[Response]:
    """It is in the module of the request."""
    request = request_class(api_key)
    name = f"{request.__name__.removesuffix('Request')}Response"
    found: type[Response] = getattr(sys.modules[request.__module__], name)
    return found

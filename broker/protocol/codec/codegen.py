"""Generates, for one message class and version, a flat decode function and a flat encode function.

Interpreting a field table costs a method call per field; a function generated for one version is as
fast as hand-written code. It is generated on first use (a third of a millisecond) and kept for
ever; there are only as many as there are versions in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from strandline.broker.protocol.codec.decoder_source import DecoderSource
from strandline.broker.protocol.codec.encoder_source import EncoderSource
from strandline.broker.protocol.codec.source import Source
from strandline.broker.protocol.schema.schema import Part, Struct

Decoder: TypeAlias = Callable[[memoryview, int, int], tuple[Struct, int]]
Encoder: TypeAlias = Callable[[Struct], list[Part]]


def make_decoder(cls: type[Struct], version: int, *, flexible: bool) -> Decoder:
    """Returns the decode function of `cls`: (data, position, limit) to (struct, position)."""
    return cast("Decoder", _build(DecoderSource(version, flexible), cls, "decode"))


def make_encoder(cls: type[Struct], version: int, *, flexible: bool) -> Encoder:
    """Returns the encode function of `cls`: struct to buffers and untouched parts."""
    return cast("Encoder", _build(EncoderSource(version, flexible), cls, "encode"))


def _build(source: Source, cls: type[Struct], name: str) -> object:
    text = source.write(cls)
    code = compile(text, f"<{name} {cls.__name__} v{source.version}>", "exec")
    exec(code, source.names)
    return source.names[name]

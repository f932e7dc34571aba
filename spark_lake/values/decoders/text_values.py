"""Decoder of values that are UTF-8 text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.spark_lake.values.decoders.decoder import UnparsableValue


class TextValues:
    """Decoder of UTF-8 texts into a string column."""

    @property
    def type(self) -> Any:
        return pa.string()

    def decode(self, values: Any) -> Any:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise UnparsableValue("it is no UTF-8") from error

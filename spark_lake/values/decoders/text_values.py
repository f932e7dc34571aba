"""Values that are UTF-8 text."""

from __future__ import annotations

from typing import Any

from strandline.spark_lake.values.decoders.decoder import UnparsableValue


class TextValues:
    """The value as a string column."""

    @property
    def type(self) -> Any:
        import pyarrow as pa

        return pa.string()

    def decode(self, values: Any) -> Any:
        import pyarrow as pa

        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise UnparsableValue("it is no UTF-8") from error

"""Options for decoded values: format, schema, policy for unparsable values.

`values/decoding_plan.py` applies them. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from strandline.spark_lake.options.given_options import GivenOptions
from strandline.storage.errors import InvalidConfig
from strandline.storage.urls import check_no_password


class ValueFormat(Enum):
    """Format of values; the enum's values are those of option valueFormat."""

    RAW = "raw"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class ValueErrors(Enum):
    """Policy for a value that does not parse."""

    FAIL = "fail"
    NULL = "null"
    # Null is what does not parse of it; of JSON, which says where a field ends.
    FIELD = "field"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """Options of value decoding; `values/decoding_plan.py` has the combinations per format."""

    format: ValueFormat = ValueFormat.RAW
    errors: ValueErrors = ValueErrors.FAIL
    schema: str | None = None
    descriptors: str | None = None
    message: str | None = None
    subject: str | None = None
    registry_url: str | None = None
    registry_auth: str | None = field(default=None, repr=False)


def parse_values(given: GivenOptions) -> ValueOptions:
    """Raises InvalidConfig for an option that does not apply to the format."""
    options = ValueOptions(
        format=given.one_of("valueFormat", {one.value: one for one in ValueFormat}, "raw"),
        errors=given.one_of("valueErrors", {one.value: one for one in ValueErrors}, "fail"),
        schema=given.text("valueSchema"),
        descriptors=given.text("valueDescriptors"),
        message=given.text("valueMessage"),
        subject=given.text("valueSubject"),
        registry_url=given.text("schemaRegistry.url"),
        registry_auth=given.text("schemaRegistry.userPassword"),
    )
    if options.registry_url is not None:
        check_no_password(
            "option schemaRegistry.url", options.registry_url, "schemaRegistry.auth has them"
        )
        parts = urlsplit(options.registry_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(
                f"option schemaRegistry.url is {options.registry_url!r}, it must be"
                " http://host:port or https://host:port"
            )
    if options.errors is ValueErrors.FIELD and options.format is not ValueFormat.JSON:
        raise InvalidConfig(
            "option valueErrors=field goes with valueFormat=json: in other formats nobody knows"
            " where the field after a wrong one begins; valueErrors=null is for the whole value"
        )
    for name, formats in _FORMATS_WITH.items():
        if given.text(name) is not None and options.format not in formats:
            raise InvalidConfig(
                f"option {name} means nothing with valueFormat={options.format.value}; it goes with"
                f" {' or '.join(one.value for one in formats)}"
            )
    return options


_REGISTERED = (ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF)
_FORMATS_WITH = {
    "valueSchema": (ValueFormat.JSON, ValueFormat.AVRO),
    "valueErrors": (ValueFormat.STRING, *_REGISTERED),
    "valueDescriptors": (ValueFormat.PROTOBUF,),
    "valueMessage": (ValueFormat.PROTOBUF,),
    "valueSubject": _REGISTERED,
    "schemaRegistry.url": _REGISTERED,
    "schemaRegistry.userPassword": _REGISTERED,
}

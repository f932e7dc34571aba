"""Our tables are Kafka's: compared line by line with those that two other libraries carry."""

from __future__ import annotations

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.schema import ArrayOf, Message, Struct, StructOf
from tests.support.response_class import response_class
from tests.unit.broker.protocol.message_values import (
    Versions,
    by_class,
    is_known_to_libraries,
    is_own,
    label,
    messages_of_kio,
)
from tests.unit.broker.protocol.oracle_tables import (
    UNKNOWN_TO_KAFKA_PYTHON,
    kafka_name,
    kafka_python_class,
    kafka_python_default,
    kafka_python_rows,
    kio_rows,
    messages_of_kafka_python,
    our_rows,
    with_names_of_kafka_python,
)

KEYS_OF_KAFKA_PYTHON = [ApiKey(key) for key in SPECS if key not in UNKNOWN_TO_KAFKA_PYTHON]


@pytest.mark.parametrize(("cls", "versions"), by_class(messages_of_kafka_python()), ids=label)
def test_the_table_is_that_of_kafka_python(cls: type[Message], versions: Versions) -> None:
    for version in versions:
        ours = with_names_of_kafka_python(our_rows(cls, version))
        assert ours == with_names_of_kafka_python(kafka_python_rows(cls, version))


@pytest.mark.parametrize(("cls", "versions"), by_class(messages_of_kio()), ids=label)
def test_the_table_is_that_of_kio(cls: type[Message], versions: Versions) -> None:
    for version in versions:
        assert our_rows(cls, version) == kio_rows(cls, version)


@pytest.mark.parametrize("key", KEYS_OF_KAFKA_PYTHON, ids=lambda key: key.name)
def test_flexible_versions_begin_where_kafka_python_has_them(key: ApiKey) -> None:
    for cls in (codec.request_class(key), response_class(key)):
        for version in SPECS[key].supported:
            assert cls.spec.is_flexible(version) is kafka_python_class(cls).flexible_version_q(
                version
            )


@pytest.mark.parametrize("key", KEYS_OF_KAFKA_PYTHON, ids=lambda key: key.name)
def test_what_a_version_does_not_carry_has_kafkas_default(key: ApiKey) -> None:
    """Defaults count where nothing is sent: tags, and request fields of other versions."""
    request, response = codec.request_class(key), response_class(key)
    _compare_defaults(request, request, SPECS[key].supported.lowest, "", tags_only=False)
    _compare_defaults(response, response, SPECS[key].supported.lowest, "", tags_only=True)


def _compare_defaults(
    root: type[Message], cls: type[Struct], lowest: int, prefix: str, *, tags_only: bool
) -> None:
    for field in cls.fields.values():
        path = prefix + kafka_name(cls, field.name)
        inner = field.kind.element if isinstance(field.kind, ArrayOf) else field.kind
        seen = field.tag is not None or (field.first > lowest and not tags_only)
        if isinstance(inner, StructOf):
            _compare_defaults(root, inner.struct, lowest, path + ".", tags_only=tags_only)
            # A tagged struct is None where Kafka has a struct of defaults: same bytes, none.
            seen = seen and inner is not field.kind
        is_known = is_known_to_libraries(root, field.first)
        # The same for topic ids of versions that have only names.
        if seen and is_known and field.name != "topic_id" and not is_own(field):
            assert field.default == kafka_python_default(root, path), path

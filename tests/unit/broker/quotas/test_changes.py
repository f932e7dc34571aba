"""Quotas are altered and described as Kafka does, and refused with its codes."""

from __future__ import annotations

import pytest

from strandline.broker.cluster.metadata.controller_messages import Intent
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import decode_snapshot, encode_snapshot
from strandline.broker.cluster.metadata.records import (
    ALL_BROKERS,
    QuotaEntity,
    config_records,
    quota_records,
)
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterQuotaEntry,
    AlterQuotaResult,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.changes import (
    AlterClientQuotas,
    Filter,
    alter,
    describe,
)
from strandline.storage.remote.keys import metadata_snapshot_key


def alteration(names: dict[str, str | None], **values: float | None) -> AlterQuotaEntry:
    return AlterQuotaEntry(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[
            QuotaOperation(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


def outcome(
    image: MetadataImage, *entries: AlterQuotaEntry, intent: Intent = Intent.APPLY
) -> tuple[MetadataImage, tuple[AlterQuotaResult, ...]]:
    decision = alter(image, AlterClientQuotas(entries, intent))
    after = image.apply_entry(decision.records) if decision.records else image
    return after, decision.results


def quotas_of(image: MetadataImage, **names: str) -> dict[str, float]:
    wanted = {kind.replace("_", "-"): name for kind, name in names.items()}
    return dict(image.client_quotas.get(QuotaEntity.of(wanted), {}))


def test_quotas_are_set_changed_and_taken_away_key_by_key() -> None:
    image, (result,) = outcome(
        MetadataImage(),
        alteration(
            {"user": "alice", "client-id": None}, producer_byte_rate=5, request_percentage=2.5
        ),
    )
    assert result.error_code == ErrorCode.NONE
    assert quotas_of(image, user="alice", client_id="") == {
        "producer_byte_rate": 5,
        "request_percentage": 2.5,
    }
    image, _ = outcome(
        image, alteration({"client-id": None, "user": "alice"}, producer_byte_rate=None)
    )
    assert quotas_of(image, user="alice", client_id="") == {"request_percentage": 2.5}
    image, _ = outcome(
        image, alteration({"user": "alice", "client-id": None}, request_percentage=None)
    )
    assert not image.client_quotas


def test_what_changes_nothing_leaves_no_record() -> None:
    image, _ = outcome(MetadataImage(), alteration({"user": "alice"}, producer_byte_rate=5))
    same, _ = outcome(
        image,
        alteration({"user": "alice"}, producer_byte_rate=5),
        alteration({"user": "bob"}, consumer_byte_rate=None),
    )
    assert same is image


def test_a_request_that_only_validates_changes_nothing() -> None:
    image, (result,) = outcome(
        MetadataImage(),
        alteration({"user": "alice"}, producer_byte_rate=5),
        intent=Intent.VALIDATE,
    )
    assert result.error_code == ErrorCode.NONE
    assert not image.client_quotas


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (alteration({}), "empty client quota entity"),
        (alteration({"group": "g"}, producer_byte_rate=1), "Unhandled client quota entity type"),
        (alteration({"user": ""}, producer_byte_rate=1), "Empty user not supported"),
        (alteration({"ip": "10.0.0.1", "user": "a"}), "Invalid quota entity combination"),
        (alteration({"ip": "no.such.host"}), "is not a valid IP"),
        (alteration({"user": "a"}, nonsense=1), "Invalid configuration key nonsense"),
        (alteration({"user": "a"}, connection_creation_rate=1), "Invalid configuration key"),
        (alteration({"ip": "10.0.0.1"}, producer_byte_rate=1), "Invalid configuration key"),
        (alteration({"user": "a"}, producer_byte_rate=0), "must be greater than 0"),
        (alteration({"user": "a"}, producer_byte_rate=-1), "must be greater than 0"),
        (alteration({"user": "a"}, request_percentage=float("nan")), "must be greater than 0"),
        (alteration({"user": "a"}, request_percentage=float("inf")), "must be greater than 0"),
        (alteration({"user": "a"}, producer_byte_rate=1.5), "cannot be a fractional value"),
        (alteration({"user": "a"}, consumer_byte_rate=1e30), "is too large"),
        (alteration({"ip": "10.0.0.1"}, connection_creation_rate=2.0**31), "is too large"),
        (alteration({"user": "x" * 5000}, producer_byte_rate=1), "too long"),
    ],
)
def test_what_kafka_refuses_is_refused(wrong: AlterQuotaEntry, complaint: str) -> None:
    image, (good, bad) = outcome(
        MetadataImage(), alteration({"client-id": "app"}, consumer_byte_rate=1), wrong
    )
    assert good.error_code == ErrorCode.NONE
    assert bad.error_code == ErrorCode.INVALID_REQUEST
    assert complaint in (bad.error_message or "")
    assert list(image.client_quotas) == [QuotaEntity.of({"client-id": "app"})]


def test_an_entity_and_a_key_may_be_named_once() -> None:
    twice = AlterQuotaEntry(
        entity=(EntityData(entity_type="user", entity_name="b"),),
        ops=(QuotaOperation(key="producer_byte_rate", value=1.0),) * 2,
    )
    parts = AlterQuotaEntry(entity=(EntityData(entity_type="user", entity_name="c"),) * 2, ops=())
    _, results = outcome(
        MetadataImage(),
        alteration({"user": "a"}, producer_byte_rate=1),
        alteration({"user": "a"}, producer_byte_rate=2),
        twice,
        parts,
    )
    codes = [result.error_code for result in results]
    assert codes == [ErrorCode.NONE] + [ErrorCode.INVALID_REQUEST] * 3


def test_addresses_are_kept_in_one_form() -> None:
    image, _ = outcome(
        MetadataImage(), alteration({"ip": "2001:0DB8::0001"}, connection_creation_rate=4)
    )
    assert quotas_of(image, ip="2001:db8::1") == {"connection_creation_rate": 4}


# --- describing ----------------------------------------------------------------------------------

ENTITIES = [
    {"user": "alice"},
    {"user": "alice", "client-id": "app"},
    {"user": ""},
    {"client-id": "app"},
    {"ip": ""},
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(exact={}, any_of=frozenset(), strict=False), [0, 1, 2, 3, 4]),
        (Filter(exact={"user": "alice"}, any_of=frozenset(), strict=False), [0, 1]),
        (Filter(exact={"user": "alice"}, any_of=frozenset(), strict=True), [0]),
        (Filter(exact={"user": ""}, any_of=frozenset(), strict=True), [2]),
        (Filter(exact={}, any_of=frozenset({"user"}), strict=False), [0, 1, 2]),
        (Filter(exact={"user": "alice"}, any_of=frozenset({"client-id"}), strict=True), [1]),
        (Filter(exact={"client-id": "none"}, any_of=frozenset(), strict=False), []),
    ],
)
def test_entities_are_found_by_name_default_and_type(wanted: Filter, found: list[int]) -> None:
    image = MetadataImage()
    for names in ENTITIES:
        quotas = {"request_percentage": 1.0}
        image = image.apply_entry(quota_records(QuotaEntity.of(names), {}, quotas))
    described = {entity for entity, _ in describe(image, wanted)}
    assert described == {QuotaEntity.of(ENTITIES[number]) for number in found}


# --- keeping -------------------------------------------------------------------------------------


def test_quotas_and_altered_keys_are_in_snapshots() -> None:
    image = MetadataImage(cluster_id="c").apply_entry(
        [
            *quota_records(
                QuotaEntity.of({"user": "", "client-id": "a"}), {}, {"request_percentage": 0.1}
            ),
            *config_records(ConfigResourceType.BROKER, ALL_BROKERS, {}, {"max.connections": "7"}),
            *config_records(ConfigResourceType.BROKER, "3", {}, {"log.retention.ms": "8"}),
        ]
    )
    key = metadata_snapshot_key(1)
    content = encode_snapshot(image, head_checksum="0")
    assert decode_snapshot(content, key=key, index=1).image == image

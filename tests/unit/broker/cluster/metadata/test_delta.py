"""A delta is what its entries changed: no more and no less, for one of them as for many."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.cluster.metadata import section as metadata_section
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import decode_snapshot, encode_snapshot
from strandline.broker.cluster.metadata.records import config_records, topic_records
from strandline.broker.cluster.metadata.section import TOP_MAX, SectionDelta
from strandline.broker.cluster.metadata.topic_names import collision_key
from strandline.broker.protocol.formats.metadata_records import RemoveTopicRecord
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.histories import (
    FIRST,
    KINDS,
    PICKS,
    TIERED,
    Entry,
    history,
    replayed,
)

SECTIONS = (
    "topics",
    "brokers",
    "pending_purges",
    "broker_properties",
    "client_quotas",
    "group_properties",
    "scram_credentials",
    "acls",
    "feature_levels",
)
A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)


@pytest.fixture(autouse=True, scope="module", params=[2, TOP_MAX])
def top_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """With changes on top of a base, and with nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_section, "TOP_MAX", request.param)
        yield


def section(delta: MetadataDelta, name: str) -> SectionDelta[object, object]:
    found: SectionDelta[object, object] = getattr(delta, name)
    return found


def section_of(image: MetadataImage, name: str) -> dict[object, object]:
    return dict(getattr(image, "topics_by_id" if name == "topics" else name))


def assert_adds_up(before: MetadataImage, delta: MetadataDelta, after: MetadataImage) -> None:
    """That `before` and what the delta says are `after`, and that it names nothing else."""
    assert delta.before is before
    for name in SECTIONS:
        was, becomes, part = section_of(before, name), section_of(after, name), section(delta, name)
        for value in part.gone():
            (key,) = [key for key in was if was[key] is value and key not in becomes]
            del was[key]
        now = {key: becomes[key] for key in becomes if key in part}
        assert {id(value) for value in part.changed()} == {id(value) for value in now.values()}
        assert {**was, **now} == becomes, name
        if not part:
            assert part.after == part.before
    assert (delta.version, delta.cluster_id) == (after.version, after.cluster_id)
    assert delta.next_producer_id == after.next_producer_id


def images_of(entries: list[Entry]) -> Iterator[tuple[MetadataImage, MetadataImage, Entry]]:
    image = MetadataImage()
    for records in entries:
        before, image = image, image.apply_entry(records)
        yield before, image, records


@given(PICKS)
def test_an_image_and_a_delta_are_the_next_image(picks: list) -> None:  # type: ignore[type-arg]
    for before, after, records in images_of(history(picks)):
        delta = replayed(before, records)
        assert delta.image() == after
        assert_adds_up(before, delta, delta.image())


@given(PICKS, st.integers(0, 12))
def test_the_delta_of_many_entries_is_what_their_images_differ_in(
    picks: list,  # type: ignore[type-arg]
    first: int,
) -> None:
    entries = history(picks)
    before = replayed(MetadataImage(), *entries[:first]).image()
    merged = replayed(before, *entries[first:])
    image = merged.image()
    assert_adds_up(before, merged, image)
    compared = MetadataDelta(before, replayed(MetadataImage(), *entries).image())
    assert compared.image() == image
    for name in SECTIONS:
        some, exact = section(merged, name), section(compared, name)
        assert sorted(map(repr, some.gone())) == sorted(map(repr, exact.gone()))
        # An entry may set what was set already.
        assert {*map(repr, exact.changed())} <= {*map(repr, some.changed())}


@given(PICKS)
def test_an_image_of_deltas_is_that_of_a_snapshot(picks: list) -> None:  # type: ignore[type-arg]
    image = replayed(MetadataImage(), *history(picks)).image()
    content = encode_snapshot(image, head_checksum="x")
    decoded = decode_snapshot(content, key="k", index=image.version).image
    assert decoded == image
    for one in (image, decoded):
        assert one.topics_by_id == {topic.topic_id: topic for topic in one.topics.values()}
        assert one.acl_ids == {acl: acl_id for acl_id, acl in one.acls.items()}
        assert one.names_by_collision == {collision_key(name): name for name in one.topics}
        for part in (one.topics, one.topics_by_id, one.client_quotas):
            assert len(part) == len(list(part)) == len(list(part.items()))
            assert {key: part.get(key) for key in part} == dict(part.items())
        for name in ("a", "b.c", "d_e", "f"):
            assert (name in one.topics) == (one.topics.get(name) is not None)
            assert (name in one.topics) == (name in list(one.topics))


@settings(max_examples=25)
@given(PICKS)
def test_what_an_entry_does_not_change_is_shared(picks: list) -> None:  # type: ignore[type-arg]
    for before, after, records in images_of(history(picks)):
        delta = replayed(before, records)
        for name in SECTIONS[1:]:
            if not section(delta, name):
                assert getattr(after, name) is getattr(before, name)
        if not delta.topics:
            assert after.topics is before.topics
            assert after.topics_by_id is before.topics_by_id
            assert after.names_by_collision is before.names_by_collision


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_each_kind_changes_its_sections_alone(kind: str) -> None:
    image = MetadataImage().apply_entry(FIRST).apply_entry(created("a", A))
    image = image.apply_entry([*created("b", B), registered(3)])
    image = image.apply_entry(KINDS["delete"](image, 1))
    records = KINDS[kind](image, 7)
    assert records
    delta = replayed(image, tuple(records))
    changed = {name for name in SECTIONS if section(delta, name)}
    assert changed == {
        "delete": {"topics", "pending_purges"},
        "purge": {"pending_purges"},
        "broker configs": {"broker_properties"},
        "quotas": {"client_quotas"},
        "group configs": {"group_properties"},
        "credentials": {"scram_credentials"},
        "acls": {"acls"},
        "level": {"feature_levels"},
        "producer ids": set(),
        # It leads no partition.
        "start": {"brokers"},
        "fence": {"brokers"},
    }.get(kind, {"topics"})


def created(name: str, topic_id: uuid.UUID) -> Entry:
    return tuple(topic_records(name, topic_id, ((1,),), TIERED))


def test_a_topic_that_comes_and_goes_within_a_delta_does_not_appear_in_it() -> None:
    delta = replayed(
        MetadataImage(),
        created("a", A),
        tuple(config_records(ConfigResourceType.TOPIC, "a", {}, {"x": "y"})),
        (RemoveTopicRecord(topic_id=A),),
    )
    assert not delta.topics


def test_a_topic_that_is_made_again_is_gone_and_new() -> None:
    before = MetadataImage().apply_entry(created("a", A))
    delta = replayed(before, (RemoveTopicRecord(topic_id=A),), created("a", B))
    assert [topic.topic_id for topic in delta.topics.gone()] == [A]
    assert [topic.topic_id for topic in delta.topics.changed()] == [B]
    assert delta.image().topics["a"].topic_id == B

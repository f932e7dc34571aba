"""Between any two images of a history lie records that make the later one out of the earlier."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.cluster.archive.image_changes import changes_between
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.section import ImageSection
from tests.unit.broker.cluster.histories import PICKS, history, replayed


def without_notes(image: MetadataImage) -> MetadataImage:
    """The image as a controller elsewhere has it, with numbers that do not count."""
    return replace(image, pending_purges=ImageSection(), version=0, next_offset=0)


@given(PICKS, st.integers(0, 12))
def test_the_records_between_two_images_make_the_later_one(
    picks: list,  # type: ignore[type-arg]
    first: int,
) -> None:
    entries = history(picks)
    before = without_notes(replayed(MetadataImage(), *entries[:first]).image())
    after = without_notes(replayed(MetadataImage(), *entries).image())
    made = before.apply_entry(changes_between(before, after))
    assert without_notes(made) == after
    assert list(changes_between(made, after)) == []

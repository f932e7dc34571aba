"""Parts of the log behind the archive in a manifest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.remote.manifest.manifest import Manifest
from tests.unit.storage.remote.manifests import (
    FOLDER,
    entry,
    part,
    with_segments,
)


def test_an_open_segment_below_the_end_of_the_archive_is_damage() -> None:
    """One of both is wrong: records would come twice, or not at all."""
    manifest = with_segments((0, 10), (10, 20)).with_tail([part(20, 25)], marked_ms=1)
    assert Manifest.decode(manifest.encode()) == manifest
    for base_offset in (19, 10, 0):
        changed = replace(manifest, tail=(part(base_offset, 25),))
        with pytest.raises(CorruptFile, match=f"begins at {base_offset}, and what is archived"):
            Manifest.decode(changed.encode())


def test_parts_behind_a_segment_stay_when_it_is_archived() -> None:
    first, second, third = part(20, 25), part(25, 30), part(30, 40)
    tail = [
        replace(one, position=5 * n, key=f"{FOLDER}{n}.tail")
        for n, one in enumerate((first, second, third))
    ]
    manifest = with_segments((0, 10), (10, 20)).with_tail(tail, marked_ms=1)
    grown = manifest.with_segment(entry(20, 30))
    assert grown.tail == (replace(tail[2], position=0),)
    assert [mark.log_key for mark in grown.deleting] == [tail[0].key, tail[1].key]
    assert Manifest.decode(grown.encode()) == grown
    # One that ends inside a part, as after a restore: the rest of the part is in no object.
    assert manifest.with_segment(entry(20, 28)).tail == ()
    assert manifest.with_segment(entry(20, 40)).tail == ()

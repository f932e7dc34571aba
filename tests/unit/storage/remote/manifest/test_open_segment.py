"""Parts of the open segment in a manifest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.remote.manifest.manifest import Manifest
from tests.unit.storage.remote.manifests import (
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

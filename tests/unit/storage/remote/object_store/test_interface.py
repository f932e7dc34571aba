"""Keys that no store may take."""

from __future__ import annotations

import pytest

from strandline.storage.remote.object_store.interface import check_key


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", "./a", "x" * 1025])
def test_keys_that_some_store_would_misread_are_our_mistake(key: str) -> None:
    with pytest.raises(AssertionError):
        check_key(key)

"""A host name is judged as the resolver judges it."""

from __future__ import annotations

import pytest

from strandline.storage.system.host_names import is_host_name


@pytest.mark.parametrize(
    "text",
    ["", ".", "a", "a.", "a..", "a..b", ".a", "127.0.0.1", "::1", "fe80::1%lo", "a b", "a" * 63,
     "a" * 64, f"{'a' * 64}.org", f"b.{'a' * 64}", "bücher.example", "ü..b", f"{'ü' * 64}.org"],
)  # fmt: skip
def test_a_host_name_is_one_that_the_resolver_can_encode(text: str) -> None:
    try:
        text.encode("idna")
    except UnicodeError:
        assert not is_host_name(text)
    else:
        assert is_host_name(text)

"""How long and how many objects are known to lie where they lie."""

from __future__ import annotations

from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.object_store.known_sources import KnownSources


def source(url: str) -> DirectRead:
    return DirectRead(url=url)


def test_a_source_is_known_for_its_time_and_noted_anew_from_then_on() -> None:
    known = KnownSources(known_s=60.0, count_max=2)
    assert known.find("a", 100.0) == (False, None)
    known.note("a", source("http://a"), 100.0)
    assert known.find("a", 159.9) == (True, source("http://a"))
    assert not known.find("a", 160.0)[0]
    known.note("a", None, 160.0)
    assert known.find("a", 219.9) == (True, None)


def test_of_too_many_the_one_noted_longest_ago_goes() -> None:
    known = KnownSources(known_s=60.0, count_max=2)
    for key in ("a", "b", "a", "c"):
        known.note(key, source(f"http://{key}"), 0.0)
    assert [key for key in "abc" if known.find(key, 1.0)[0]] == ["a", "c"]

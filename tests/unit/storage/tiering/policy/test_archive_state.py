"""The permissions of each archive state, and the check of moves."""

from __future__ import annotations

import itertools
import re

import pytest

from strandline.storage.tiering.policy import archive_state
from strandline.storage.tiering.policy.archive_state import (
    LEGAL_MOVES,
    ArchiveLife,
    ArchiveState,
)
from strandline.storage.tiering.policy.leadership import Lead

# The rows of the table in the module's head: state, append, free, commit.
ROW = re.compile(r"^    ([A-Z_]+) +(yes|-) +(yes|-) +(yes|-)(?:  |$)", re.MULTILINE)


def life_in(state: ArchiveState, lead: Lead = Lead.CONFIRMED) -> ArchiveLife:
    """A life that came to `state` by legal moves."""
    ways = {ArchiveState.UNKNOWN: [ArchiveState.UNKNOWN]}
    for _ in ArchiveState:
        for known, way in tuple(ways.items()):
            for following in LEGAL_MOVES[known]:
                ways.setdefault(following, [*way, following])
    life = ArchiveLife(lead)
    for step in ways[state][1:]:
        life.move(step)
    assert life.state is state
    return life


def test_the_table_in_the_head_says_what_each_state_permits() -> None:
    rows = ROW.findall(archive_state.__doc__ or "")
    assert [name for name, *_ in rows] == [state.name for state in ArchiveState]
    for name, *permits in rows:
        life = life_in(ArchiveState[name])
        said = [permit == "yes" for permit in permits]
        assert said == [life.may_append, life.may_free, life.may_commit], name


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ArchiveState, repeat=2)))
def test_a_move_that_is_not_in_the_table_is_refused(
    before: ArchiveState, after: ArchiveState
) -> None:
    life = life_in(before)
    if before is ArchiveState.DETACHED or after in LEGAL_MOVES[before]:
        life.move(after)
        assert life.state in {before, after}
        return
    with pytest.raises(AssertionError, match=f"{before.name}.*{after.name}"):
        life.move(after)
    assert life.state is before


@pytest.mark.parametrize("state", ArchiveState)
@pytest.mark.parametrize("lead", [Lead.UNKNOWN, Lead.LOST])
def test_nothing_is_freed_or_committed_for_an_archive_that_is_not_ours(
    state: ArchiveState, lead: Lead
) -> None:
    life = life_in(state, lead)
    assert not life.may_free
    assert not life.may_commit


@pytest.mark.parametrize("state", ArchiveState)
def test_what_may_be_committed_may_be_freed_and_appended_to(state: ArchiveState) -> None:
    life = life_in(state)
    assert life.may_commit <= life.may_free <= life.may_append


@pytest.mark.parametrize("state", ArchiveState)
def test_a_life_that_ended_does_not_begin_again(state: ArchiveState) -> None:
    life = life_in(ArchiveState.DETACHED)
    life.move(state)
    assert life.is_detached()


@pytest.mark.parametrize("state", ArchiveState)
def test_the_past_is_unknown_until_the_first_load_has_ended(state: ArchiveState) -> None:
    life = ArchiveLife(Lead.CONFIRMED)
    life.is_past_unknown = True
    if state in LEGAL_MOVES[life.state]:
        life.move(state)
        assert life.is_past_unknown == life.must_load

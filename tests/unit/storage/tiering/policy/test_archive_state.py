"""The permissions of each archive state, and the check of moves."""

from __future__ import annotations

import itertools
import re

import pytest

from strandline.storage.errors import ArchiveLost, ReadOnlyReplica
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.tiering.policy import archive_state
from strandline.storage.tiering.policy.archive_state import (
    LEGAL_MOVES,
    ArchiveLife,
    ArchiveState,
)
from strandline.storage.tiering.policy.leadership import Lead

# The rows of the table in the module's head: state, append, free, commit.
ROW = re.compile(r"^    ([A-Z_]+) +(yes|-) +(yes|-) +(yes|-)(?:  |$)", re.MULTILINE)
# First those of the states, then those of what a broker is to the archive.
ROWS = ROW.findall(archive_state.__doc__ or "")


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
    rows = ROWS[: len(ArchiveState)]
    assert [name for name, *_ in rows] == [state.name for state in ArchiveState]
    for name, *permits in rows:
        life = life_in(ArchiveState[name])
        said = [permit == "yes" for permit in permits]
        assert said == [life.may_append, life.may_free, life.may_commit], name


def test_the_second_table_says_what_the_lead_leaves_of_it() -> None:
    rows = ROWS[len(ArchiveState) :]
    assert [name for name, *_ in rows] == [lead.name for lead in Lead]
    for name, *permits in rows:
        life = life_in(ArchiveState.OWNED, Lead[name])
        said = [permit == "yes" for permit in permits]
        assert said == [not life.refuses_appends, life.may_free, life.may_commit], name


def test_a_follower_takes_copies_alone_and_who_lost_the_archive_no_records_of_producers() -> None:
    following = ArchiveLife(Lead.FOLLOWING)
    assert following.refuses_appends
    following.refuse(AppendOrigin.REPLICATION)
    for origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
        with pytest.raises(ReadOnlyReplica):
            following.refuse(origin)
    lost = ArchiveLife(Lead.LOST, refuses_if_lost=True)
    assert lost.refuses_appends
    lost.refuse(AppendOrigin.COORDINATOR)
    with pytest.raises(ArchiveLost):
        lost.refuse(AppendOrigin.CLIENT)


def test_records_that_are_set_aside_are_forgotten_by_no_move_but_their_append() -> None:
    for state in (ArchiveState.SETTING_ASIDE, ArchiveState.RE_APPENDING):
        assert life_in(state).has_set_aside
        left = {after for after in LEGAL_MOVES[state] if not life_in(after).has_set_aside}
        is_appended = state is ArchiveState.RE_APPENDING
        ends = {ArchiveState.OWNED, ArchiveState.FENCED} if is_appended else set()
        assert left == {ArchiveState.DETACHED, *ends}


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

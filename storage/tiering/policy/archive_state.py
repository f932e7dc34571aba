"""State machine of one partition's archive in this broker, with the operations of each state.

    load      begins in UNKNOWN, READ_ONLY, BLOCKED or IN_DOUBT, and again where it failed

              disk and manifest do not fit, or their owner is not known ─────> BLOCKED
              it has to be claimed and cannot be, and the disk has it all ───> READ_ONLY
              there is no manifest ──────────────────────────────────────────> OWNED
              the disk took records under offsets
              that the archive has      SETTING_ASIDE ──> RE_APPENDING ─┬────> OWNED
              else                      RESTARTING ─────────────────────┴────> or FENCED

    claim     READ_ONLY ──> UNKNOWN ──> load
    commit    OWNED ──> IN_DOUBT ── done ──> OWNED
                           └── any failure ──> load
    new epoch OWNED, FENCED ──> IN_DOUBT ──> load
    recover   UNKNOWN, IN_DOUBT ──> BLOCKED ──> load      elected uncleanly, of several replicas
    detach    any ──> DETACHED, for good: the topic is deleted, or no longer tiered

                    append   free   commit
    UNKNOWN          yes      -       -      as if the store were away; see `is_past_unknown`
    READ_ONLY        yes     yes      -      the manifest is held, and not claimed
    BLOCKED           -       -       -      until a load shows how the disk may go on
    SETTING_ASIDE     -       -       -      steps 1 to 3 of divergence.py; also after a crash
    RESTARTING        -       -       -      local_restart.py
    RE_APPENDING      -       -       -      steps 4 to 7 of divergence.py
    OWNED            yes     yes     yes
    IN_DOUBT         yes     yes      -      the bucket may have another manifest than is held
    FENCED           yes      -       -      a higher leader epoch owns the manifest
    DETACHED          -       -       -      the log has no archive, and does not ask

"Free" is to free local segments because the archive has them. What this broker is to the archive
(`leadership.py`) takes some of it away:

                    append   free   commit
    CONFIRMED        yes     yes     yes
    UNKNOWN          yes      -       -
    LOST             yes      -       -      producers may be refused
    FOLLOWING         -      yes      -      its log grows by what the leader, or the archive, has;
                                             OWNED: it holds a manifest of the leader's

Invariant: only the steps of the lead move it, `ManifestOwner`'s or `FollowingSteps`. Each
attachment of a partition, and each lead, has a life of its own: a step that outlives it changes
nothing of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from strandline.storage.errors import ArchiveLost, ReadOnlyReplica
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import Epoch
from strandline.storage.tiering.policy.leadership import Lead


class ArchiveState(Enum):
    """The states of one partition's archive; the module's docstring has the transitions."""

    UNKNOWN = auto()
    READ_ONLY = auto()
    BLOCKED = auto()
    SETTING_ASIDE = auto()
    RESTARTING = auto()
    RE_APPENDING = auto()
    OWNED = auto()
    IN_DOUBT = auto()
    FENCED = auto()
    DETACHED = auto()


_State = ArchiveState
_ASIDE = frozenset({_State.SETTING_ASIDE, _State.RE_APPENDING})
_LOAD_BEGUN = frozenset({_State.BLOCKED, _State.SETTING_ASIDE, _State.RESTARTING, _State.DETACHED})

# The legal successors of each state.
LEGAL_MOVES: Mapping[ArchiveState, frozenset[ArchiveState]] = {
    _State.UNKNOWN: _LOAD_BEGUN | {_State.READ_ONLY, _State.OWNED},
    _State.READ_ONLY: _LOAD_BEGUN | {_State.READ_ONLY, _State.UNKNOWN},
    _State.BLOCKED: _LOAD_BEGUN | {_State.READ_ONLY},
    # Nothing but an append ends it: who forgets that records are set aside loses them.
    _State.SETTING_ASIDE: _ASIDE | {_State.DETACHED},
    _State.RESTARTING: _LOAD_BEGUN | {_State.OWNED, _State.FENCED},
    _State.RE_APPENDING: _ASIDE | {_State.OWNED, _State.FENCED, _State.DETACHED},
    _State.OWNED: frozenset({_State.IN_DOUBT, _State.DETACHED}),
    _State.IN_DOUBT: _LOAD_BEGUN | {_State.IN_DOUBT, _State.OWNED},
    _State.FENCED: frozenset({_State.IN_DOUBT, _State.DETACHED}),
    _State.DETACHED: frozenset(),
}

_APPENDS = frozenset(
    {_State.UNKNOWN, _State.READ_ONLY, _State.OWNED, _State.IN_DOUBT, _State.FENCED}
)
_AGREES = frozenset({_State.READ_ONLY, _State.OWNED, _State.IN_DOUBT, _State.FENCED})
_LOADED = frozenset({_State.OWNED, _State.FENCED, _State.DETACHED})
_CLAIMED = frozenset(
    {_State.RESTARTING, _State.RE_APPENDING, _State.OWNED, _State.IN_DOUBT, _State.FENCED}
)


# What this broker itself writes: markers of transactions, and records that it had before.
_OWN_ORIGINS = frozenset({AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION})


class ArchiveLife:
    """The state of one partition's archive, and the permitted operations. Event loop only."""

    __slots__ = (
        "_refuses_if_lost",
        "_state",
        "is_past_unknown",
        "lead",
        "leader_epoch",
        "may_append",
        "refuses_appends",
    )

    def __init__(
        self, lead: Lead, leader_epoch: Epoch = 0, *, refuses_if_lost: bool = False
    ) -> None:
        """`leader_epoch` is the partition's, under which the manifest is written.
        `refuses_if_lost`: whether producers are refused once the archive is another broker's.
        """
        self._state = ArchiveState.UNKNOWN
        self._refuses_if_lost = refuses_if_lost
        self.leader_epoch = leader_epoch
        self.take(lead)
        # Whether the log may take records; updated with each move, since each batch checks it.
        self.may_append = True
        # Neither this disk nor the archive has shown any record of the partition yet: until the
        # first load has ended, an empty log may be a long one whose disk was lost.
        self.is_past_unknown = False

    def take(self, lead: Lead) -> None:
        """Learns what this broker is to the archive."""
        self.lead = lead
        # Whether `refuse` refuses some. An attribute, since each batch of a tiered topic checks it.
        self.refuses_appends = lead is Lead.FOLLOWING or (
            lead is Lead.LOST and self._refuses_if_lost
        )

    def refuse(self, origin: AppendOrigin) -> None:
        """Refuses an append. Raises ReadOnlyReplica for any that is no copy of the leader's log,
        ArchiveLost for a producer's alone.
        """
        if self.is_followed and origin is not AppendOrigin.REPLICATION:
            raise ReadOnlyReplica
        if self.lead is Lead.LOST and origin not in _OWN_ORIGINS:
            raise ArchiveLost("the archive is another broker's: strandline docs runbooks/copying")

    @property
    def state(self) -> ArchiveState:
        return self._state

    def move(self, state: ArchiveState) -> None:
        """Moves to `state`. After a detach, moves of work still under way are ignored."""
        if self.is_detached():
            return
        assert state in LEGAL_MOVES[self._state], (self._state, state, self)
        self._state = state
        self.may_append = state in _APPENDS
        if state in _LOADED:
            self.is_past_unknown = False

    def doubt(self) -> None:
        """Requires that the manifest is read again before any other work."""
        if not self.must_load:
            self.move(ArchiveState.IN_DOUBT)

    # --- permissions -------------------------------------------------------------------------

    @property
    def may_free(self) -> bool:
        """Whether a local segment may be freed because the archive has its offsets."""
        return self.is_settled and not self.is_fenced

    @property
    def may_commit(self) -> bool:
        """Whether a commit of the manifest may start."""
        return self._state is ArchiveState.OWNED and self.lead is Lead.CONFIRMED

    # --- knowledge ---------------------------------------------------------------------------

    @property
    def must_load(self) -> bool:
        """Whether the manifest has to be read before any other step."""
        return self._state not in _LOADED

    @property
    def in_doubt(self) -> bool:
        """Whether the bucket may have another manifest than the held one."""
        return self.must_load and self._state is not ArchiveState.UNKNOWN

    @property
    def is_settled(self) -> bool:
        """Whether the held manifest fits this disk, and its owner is known."""
        return self._state in _AGREES and self.lead is not Lead.UNKNOWN

    @property
    def is_fenced(self) -> bool:
        """Whether another broker writes the archive, so that its records need not be ours."""
        return self._state is ArchiveState.FENCED or self.lead is Lead.LOST

    @property
    def is_claimed(self) -> bool:
        """Whether the held manifest was adopted for writing, not only for reading."""
        return self._state in _CLAIMED

    @property
    def has_set_aside(self) -> bool:
        """Whether records of this disk are set aside, and wait to be appended again."""
        return self._state in _ASIDE

    @property
    def awaits_claim(self) -> bool:
        """Whether the disk has no records beyond the archive, and the manifest is not claimed."""
        return not self.may_append or self._state is ArchiveState.READ_ONLY

    @property
    def is_followed(self) -> bool:
        """Whether another broker writes the archive."""
        return self.lead is Lead.FOLLOWING

    # A method, since it is asked again after each wait: mypy takes a property for what it was.
    def is_detached(self) -> bool:
        """Returns whether all commits are forbidden for good."""
        return self._state is ArchiveState.DETACHED

    def __repr__(self) -> str:
        return f"<ArchiveLife {self._state.name} {self.lead.name} epoch={self.leader_epoch}>"

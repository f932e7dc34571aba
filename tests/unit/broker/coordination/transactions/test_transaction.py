"""One transactional id, request by request; the scenarios are TransactionCoordinatorTest's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.coordination.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    TIMEOUT_NEVER_MS,
    ProducerIdentity,
    Transaction,
    TransactionState,
    TransactionVersion,
    Transition,
    add_partitions,
    complete,
    end_transaction,
    fence_and_abort,
    init_producer,
    needs_producer_id,
    retire,
    verify_partitions,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicPartition

ID = "orders-1"
PID, NEXT_PID = 7, 8
TIMEOUT_MS = 60_000
NOW_MS = 1_000_000
A, B = TopicPartition("a", 0), TopicPartition("b", 3)
V1, V2 = TransactionVersion.V1, TransactionVersion.V2
OLD, NEW = TransactionVersion.V0, TransactionVersion.V2
LAST_EPOCH = PRODUCER_EPOCH_MAX - 1


def known(state: TransactionState = TransactionState.EMPTY, **changes: object) -> Transaction:
    is_open = state is TransactionState.ONGOING or state.is_ending
    base = Transaction(
        transactional_id=ID,
        producer_id=PID,
        previous_producer_id=PID,
        epoch=5,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({A}) if is_open else frozenset(),
        started_ms=NOW_MS - 10 if is_open else -1,
        updated_ms=NOW_MS - 5,
    )
    return base._replace(**changes)  # type: ignore[arg-type]


def init(
    current: Transaction | None,
    expected: ProducerIdentity | None = None,
    *,
    server_version: TransactionVersion = V2,
) -> Transition:
    return init_producer(
        current,
        ID,
        timeout_ms=TIMEOUT_MS,
        expected=expected,
        fresh_id=NEXT_PID if needs_producer_id(current) else None,
        server_version=server_version,
        now_ms=NOW_MS,
    )


def end(
    current: Transaction | None,
    producer: ProducerIdentity,
    *,
    is_commit: bool,
    version: TransactionVersion = NEW,
) -> Transition:
    return end_transaction(
        current,
        producer,
        is_commit=is_commit,
        client_version=version,
        fresh_id=NEXT_PID if needs_producer_id(current) else None,
        now_ms=NOW_MS,
    )


def written(decision: Transition) -> Transaction:
    assert decision.written is not None, decision
    return decision.written


# --- InitProducerId --------------------------------------------------------------------------


def test_a_new_transactional_id_gets_a_new_producer_id_with_epoch_0() -> None:
    decision = init(None)
    assert decision.identity == ProducerIdentity(NEXT_PID, 0)
    assert written(decision).state is TransactionState.EMPTY
    assert written(decision).timeout_ms == TIMEOUT_MS


@pytest.mark.parametrize("state", [s for s in TransactionState if s.is_idle])
def test_a_producer_that_begins_again_raises_the_epoch(state: TransactionState) -> None:
    decision = init(known(state))
    assert decision.identity == ProducerIdentity(PID, 6)
    assert written(decision).last_epoch == NO_PRODUCER_EPOCH


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_a_producer_waits_while_its_last_transaction_ends(state: TransactionState) -> None:
    assert init(known(state)) == Transition(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("server_version", [V1, V2])
def test_an_open_transaction_is_aborted_before_its_id_is_given_again(
    server_version: TransactionVersion,
) -> None:
    decision = init(known(TransactionState.ONGOING), server_version=server_version)
    assert decision.error_code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert decision.identity.producer_id == NO_PRODUCER_ID
    ending = written(decision)
    assert (ending.state, ending.epoch) == (TransactionState.PREPARE_ABORT, 6)
    assert ending.partitions == {A}
    again = init(complete(ending, now_ms=NOW_MS))
    assert again.identity == ProducerIdentity(PID, 7)


def test_an_id_whose_epochs_are_used_up_is_replaced() -> None:
    assert init(known(epoch=LAST_EPOCH)).identity == ProducerIdentity(NEXT_PID, 0)


def test_a_producer_that_recovers_keeps_its_id() -> None:
    decision = init(known(), ProducerIdentity(PID, 5))
    assert decision.identity == ProducerIdentity(PID, 6)
    assert written(decision).last_epoch == 5


def test_a_recovery_that_is_repeated_gets_the_same_epoch_again() -> None:
    once = written(init(known(), ProducerIdentity(PID, 5)))
    assert init(once, ProducerIdentity(PID, 5)).identity == ProducerIdentity(PID, 6)


def test_a_recovery_after_another_producer_began_is_fenced() -> None:
    replaced = written(init(known()))
    decision = init(replaced, ProducerIdentity(PID, 5))
    assert decision == Transition(error_code=ErrorCode.PRODUCER_FENCED)


def test_a_recovery_with_another_producer_id_is_fenced() -> None:
    decision = init(known(), ProducerIdentity(99, 5))
    assert decision == Transition(error_code=ErrorCode.PRODUCER_FENCED)


def test_a_recovery_over_the_last_epoch_may_be_repeated() -> None:
    rotated = written(init(known(epoch=LAST_EPOCH), ProducerIdentity(PID, LAST_EPOCH)))
    assert rotated.identity == ProducerIdentity(NEXT_PID, 0)
    repeat = init(rotated, ProducerIdentity(PID, LAST_EPOCH))
    assert repeat.identity == ProducerIdentity(NEXT_PID, 0)


# --- partitions ------------------------------------------------------------------------------


def add(current: Transaction | None, producer: ProducerIdentity) -> Transition:
    return add_partitions(current, producer, {A, B}, client_version=OLD, now_ms=NOW_MS)


@pytest.mark.parametrize("state", [s for s in TransactionState if s.is_idle])
def test_the_first_partition_begins_the_transaction(state: TransactionState) -> None:
    begun = written(add(known(state), ProducerIdentity(PID, 5)))
    assert begun.state is TransactionState.ONGOING
    assert (begun.partitions, begun.started_ms) == (frozenset({A, B}), NOW_MS)


def test_a_further_partition_leaves_the_time_at_which_the_transaction_began() -> None:
    grown = written(add(known(TransactionState.ONGOING), ProducerIdentity(PID, 5)))
    assert (grown.partitions, grown.started_ms) == (frozenset({A, B}), NOW_MS - 10)


def test_partitions_that_are_there_already_are_not_written_again() -> None:
    current = known(TransactionState.ONGOING, partitions=frozenset({A, B}))
    assert add(current, ProducerIdentity(PID, 5)) == Transition()


@pytest.mark.parametrize(
    ("current", "producer", "code"),
    [
        (None, ProducerIdentity(PID, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (known(), ProducerIdentity(99, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (known(), ProducerIdentity(PID, 4), ErrorCode.PRODUCER_FENCED),
        (known(), ProducerIdentity(PID, 6), ErrorCode.PRODUCER_FENCED),
        (
            known(TransactionState.PREPARE_COMMIT),
            ProducerIdentity(PID, 5),
            ErrorCode.CONCURRENT_TRANSACTIONS,
        ),
        (
            known(TransactionState.PREPARE_ABORT),
            ProducerIdentity(PID, 5),
            ErrorCode.CONCURRENT_TRANSACTIONS,
        ),
    ],
)
def test_only_the_present_producer_adds_and_verifies_partitions(
    current: Transaction | None, producer: ProducerIdentity, code: ErrorCode
) -> None:
    assert add(current, producer) == Transition(error_code=code)
    assert verify_partitions(current, producer, {A}) == {A: code}


def test_a_partition_outside_of_the_transaction_is_not_verified() -> None:
    codes = verify_partitions(known(TransactionState.ONGOING), ProducerIdentity(PID, 5), {A, B})
    assert codes == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}


# --- the end ---------------------------------------------------------------------------------

PRESENT, REPEAT = ProducerIdentity(PID, 5), ProducerIdentity(PID, 4)
DONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
INVALID, CONCURRENT = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
# None: a transaction begins to end.
VERSION_1 = {
    TransactionState.EMPTY: (INVALID, INVALID),
    TransactionState.ONGOING: (None, None),
    TransactionState.PREPARE_COMMIT: (CONCURRENT, CONCURRENT),
    TransactionState.PREPARE_ABORT: (CONCURRENT, CONCURRENT),
    TransactionState.COMPLETE_COMMIT: (DONE, INVALID),
    TransactionState.COMPLETE_ABORT: (INVALID, DONE),
}
# Commit and abort with the present epoch, then both repeated.
VERSION_2 = {
    TransactionState.EMPTY: (INVALID, None, FENCED, FENCED),
    TransactionState.ONGOING: (None, None, FENCED, FENCED),
    TransactionState.PREPARE_COMMIT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    TransactionState.PREPARE_ABORT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    TransactionState.COMPLETE_COMMIT: (INVALID, None, DONE, INVALID),
    TransactionState.COMPLETE_ABORT: (INVALID, None, FENCED, DONE),
}


@pytest.mark.parametrize("state", VERSION_1)
def test_a_transaction_of_version_1_ends_as_kafkas_table_says(state: TransactionState) -> None:
    for is_commit, code in zip((True, False), VERSION_1[state], strict=True):
        decision = end(known(state), PRESENT, is_commit=is_commit, version=OLD)
        assert (decision.error_code if decision.written is None else None) is code
    assert end(known(state), REPEAT, is_commit=True, version=OLD).error_code is FENCED


@pytest.mark.parametrize("state", VERSION_2)
def test_a_transaction_of_version_2_ends_as_kafkas_table_says(state: TransactionState) -> None:
    cases = [(who, commit) for who in (PRESENT, REPEAT) for commit in (True, False)]
    for (producer, is_commit), code in zip(cases, VERSION_2[state], strict=True):
        decision = end(known(state, client_version=NEW), producer, is_commit=is_commit)
        assert (decision.error_code if decision.written is None else None) is code
        if code is DONE:
            assert decision.identity == PRESENT


@pytest.mark.parametrize(
    "state", [TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]
)
def test_a_zombie_repeats_no_end_of_its_successor_of_version_1(state: TransactionState) -> None:
    """The successor's end raised no epoch: it is one above the zombie's from its begin."""
    for is_commit in (True, False):
        assert end(known(state, client_version=OLD), REPEAT, is_commit=is_commit).error_code is (
            FENCED
        )


@pytest.mark.parametrize("is_commit", [True, False])
def test_version_1_keeps_the_epoch_and_version_2_raises_it(is_commit: bool) -> None:
    current = known(TransactionState.ONGOING)
    old = end(current, PRESENT, is_commit=is_commit, version=OLD)
    new = end(current, PRESENT, is_commit=is_commit)
    assert (written(old).epoch, written(new).epoch) == (5, 6)
    assert new.identity == ProducerIdentity(PID, 6)
    done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    for decision in (old, new):
        completed = complete(written(decision), now_ms=NOW_MS)
        assert (completed.state, completed.partitions) == (done, frozenset())
        assert completed.epoch == written(decision).epoch


def test_a_transaction_that_ends_with_the_last_epoch_goes_on_under_a_new_id() -> None:
    current = known(TransactionState.ONGOING, epoch=LAST_EPOCH)
    decision = end(current, current.identity, is_commit=True)
    assert written(decision).identity == ProducerIdentity(PID, PRODUCER_EPOCH_MAX)
    assert decision.identity == ProducerIdentity(NEXT_PID, 0)
    completed = complete(written(decision), now_ms=NOW_MS)
    assert completed.identity == ProducerIdentity(NEXT_PID, 0)
    repeat = end(completed, current.identity, is_commit=True)
    assert repeat == Transition(identity=ProducerIdentity(NEXT_PID, 0))


@pytest.mark.parametrize("epoch", [5, LAST_EPOCH])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_producer_with_the_next_identity_waits_for_the_markers_of_the_last_transaction(
    epoch: int, is_commit: bool
) -> None:
    """The end is answered before its markers are written, with an epoch or an id of the next."""
    current = known(TransactionState.ONGOING, epoch=epoch)
    decision = end(current, current.identity, is_commit=is_commit)
    ending, me = written(decision), decision.identity
    waits = Transition(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    assert add(ending, me) == waits
    assert end(ending, me, is_commit=False) == waits
    assert init(ending, me) == waits
    completed = complete(ending, now_ms=NOW_MS)
    assert written(add(completed, me)).state is TransactionState.ONGOING
    assert written(end(completed, me, is_commit=False)).state is TransactionState.PREPARE_ABORT
    recovered = init(completed, me).identity
    assert recovered == ProducerIdentity(me.producer_id, me.epoch + 1)


def test_a_fence_with_the_last_epoch_replaces_the_id_and_the_producer_may_recover() -> None:
    """As in shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyTV2 and its variants."""
    current = known(TransactionState.ONGOING, epoch=LAST_EPOCH)
    next_one = ProducerIdentity(NEXT_PID, 0)
    fenced = fence_and_abort(current, fresh_id=NEXT_PID, server_version=V2, now_ms=NOW_MS)
    assert written(fenced).identity == ProducerIdentity(PID, PRODUCER_EPOCH_MAX)
    completed = complete(written(fenced), now_ms=NOW_MS)
    assert completed.identity == next_one
    # Its late abort, and its recovery, are answered as repeats; its commit did not happen.
    assert end(completed, current.identity, is_commit=False) == Transition(identity=next_one)
    commit = end(completed, current.identity, is_commit=True)
    assert commit.error_code is ErrorCode.PRODUCER_FENCED
    assert init(completed, current.identity).identity == next_one
    # Version 1 cannot replace the id while it aborts; the next producer of the id gets another.
    old = fence_and_abort(current, fresh_id=None, server_version=V1, now_ms=NOW_MS)
    completed = complete(written(old), now_ms=NOW_MS)
    assert completed.identity == ProducerIdentity(PID, PRODUCER_EPOCH_MAX)
    assert init(completed).identity == next_one


@pytest.mark.parametrize("server_version", [V1, V2])
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_commit_behind_the_abort_of_the_coordinator_is_fenced(
    version: TransactionVersion, server_version: TransactionVersion
) -> None:
    """INVALID_TXN_STATE would tell the client of a fault of its own."""
    current = known(TransactionState.ONGOING, client_version=version)
    timed_out = fence_and_abort(
        current, fresh_id=None, server_version=server_version, now_ms=NOW_MS
    )
    waits = end(written(timed_out), current.identity, is_commit=True, version=version)
    assert waits.error_code in (CONCURRENT, FENCED)
    completed = complete(written(timed_out), now_ms=NOW_MS)
    late = end(completed, current.identity, is_commit=True, version=version)
    assert late == Transition(error_code=FENCED)


def test_a_stranger_ends_nothing() -> None:
    stranger = ProducerIdentity(99, 5)
    for current in (None, known(TransactionState.ONGOING)):
        for version in (OLD, NEW):
            decision = end(current, stranger, is_commit=True, version=version)
            assert decision == Transition(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_a_transaction_times_out_unless_another_coordinator_ends_it() -> None:
    open_since = known(TransactionState.ONGOING).started_ms
    current = known(TransactionState.ONGOING)
    assert not current.is_timed_out(open_since + TIMEOUT_MS)
    assert current.is_timed_out(open_since + TIMEOUT_MS + 1)
    assert not current._replace(timeout_ms=TIMEOUT_NEVER_MS).is_timed_out(10**15)
    assert not known().is_timed_out(10**15)


def test_a_transaction_that_timed_out_fences_its_producer() -> None:
    for version in (V1, V2):
        fenced = fence_and_abort(
            known(TransactionState.ONGOING), fresh_id=None, server_version=version, now_ms=NOW_MS
        )
        completed = complete(written(fenced), now_ms=NOW_MS)
        assert end(completed, PRESENT, is_commit=True, version=OLD).error_code is FENCED
        assert add(completed, PRESENT).error_code is FENCED


def test_only_idle_ids_expire() -> None:
    for state in TransactionState:
        current = known(state)
        assert not current.is_expired(current.updated_ms + 99, 100)
        assert current.is_expired(current.updated_ms + 100, 100) is state.is_idle


# --- together --------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(["init", "recover", "add", "commit", "abort", "complete", "time out"]),
        max_size=40,
    ),
    st.sampled_from([(V1, OLD), (V2, OLD), (V2, NEW)]),
    st.sampled_from([0, LAST_EPOCH - 3]),
)
def test_no_two_transactions_of_version_2_share_an_epoch_and_no_id_goes_back(
    steps: list[str], versions: tuple[TransactionVersion, TransactionVersion], first_epoch: int
) -> None:
    server_version, client_version = versions
    fresh = iter(range(100, 200))
    current: Transaction | None = None
    mine = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    ended: list[ProducerIdentity] = []
    seen: list[ProducerIdentity] = []
    for now_ms, step in enumerate(steps):
        fresh_id = next(fresh) if needs_producer_id(current) else None
        if step in ("init", "recover"):
            decision = init_producer(
                current,
                ID,
                timeout_ms=TIMEOUT_MS,
                expected=mine if step == "recover" and current is not None else None,
                fresh_id=fresh_id,
                server_version=server_version,
                now_ms=now_ms,
            )
            if current is None and decision.written is not None:
                # As if many transactions had been before.
                decision = decision._replace(written=decision.written._replace(epoch=first_epoch))
                mine = written(decision).identity
            elif decision.error_code is ErrorCode.NONE:
                mine = decision.identity
        elif current is None:
            continue
        elif step == "add":
            decision = add_partitions(
                current, mine, {A}, client_version=client_version, now_ms=now_ms
            )
        elif step in ("commit", "abort"):
            before = current
            decision = end_transaction(
                current,
                mine,
                is_commit=step == "commit",
                client_version=client_version,
                fresh_id=fresh_id,
                now_ms=now_ms,
            )
            if decision.written is not None:
                ended.append(before.identity)
                assert before.identity == mine
            if client_version.bumps_epoch and decision.error_code is ErrorCode.NONE:
                mine = decision.identity
        elif step == "complete" and current.state.is_ending:
            decision = Transition(written=complete(current, now_ms=now_ms))
        elif step == "time out" and current.state is TransactionState.ONGOING:
            decision = fence_and_abort(
                current, fresh_id=fresh_id, server_version=server_version, now_ms=now_ms
            )
        else:
            continue
        if decision.written is not None:
            current = decision.written
            seen.append(current.identity)
    assert seen == sorted(seen, key=lambda one: (one.producer_id, one.epoch))
    if client_version.bumps_epoch:
        assert len(ended) == len(set(ended))


@pytest.mark.parametrize(
    "state", [state for state in TransactionState if state is not TransactionState.DEAD]
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_producer_id_that_is_retired_is_fenced_and_replaced_by_the_next_producer(
    state: TransactionState, version: TransactionVersion
) -> None:
    before = known(state, client_version=version, next_producer_id=NEXT_PID)
    after = retire(before, now_ms=NOW_MS)
    is_ongoing = state is TransactionState.ONGOING
    assert after.state is (TransactionState.PREPARE_ABORT if is_ongoing else state)
    assert after.partitions == before.partitions
    if after.state.is_ending:
        after = complete(after, now_ms=NOW_MS)
    assert after.producer_id == PID
    for epoch in (before.epoch, LAST_EPOCH):
        producer = ProducerIdentity(PID, epoch)
        assert init(after, producer).error_code is ErrorCode.PRODUCER_FENCED
        added = add_partitions(after, producer, {A}, client_version=version, now_ms=NOW_MS)
        assert added.error_code is ErrorCode.PRODUCER_FENCED
        ended = end(after, producer, is_commit=True, version=version)
        assert ended.error_code is ErrorCode.PRODUCER_FENCED
    assert init(after).identity == ProducerIdentity(NEXT_PID, 0)

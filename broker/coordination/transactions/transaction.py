"""The state of one transactional id: an immutable value, and what each request makes of it.

    EMPTY ----------------------+
      ^   \\                      |
      |    +--> ONGOING --> PREPARE_COMMIT --> COMPLETE_COMMIT --+
      |    |       |                                             |
      |    |       +------> PREPARE_ABORT ---> COMPLETE_ABORT ---+--> ONGOING, EMPTY, DEAD
      +----+---- InitProducerId

Every function takes the present value and returns a `Transition`: the value to write to the log and
the error code of the response. Nothing here has side effects; the caller writes first and answers
afterwards. Follows Kafka 4.3's TransactionCoordinator and TransactionMetadata, without
their pending states: between a decision and its record in the log nothing else can happen here.

A client speaks transaction version 1 or 2. With version 2 (KIP-890) each transaction ends with a
new producer epoch, so a batch that is late by one transaction is fenced.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final, NamedTuple

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import Offset, TopicId, TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NOT_STARTED: Final = -1
PRODUCER_EPOCH_MAX: Final = 32767
# The timeout of transactions that another coordinator ends (KIP-939): there is none.
TIMEOUT_NEVER_MS: Final = 2**31 - 1


class TransactionState(IntEnum):
    """The states, as Kafka writes them to the log; 7 (PrepareEpochFence) is never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """The name in ListTransactions and DescribeTransactions."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_ending(self) -> bool:
        """The outcome is decided and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open; only such an id may expire."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


class TransactionVersion(IntEnum):
    """Levels of the feature `transaction.version`."""

    V0 = 0
    V1 = 1  # flexible records in the transaction log
    V2 = 2  # a new epoch at each end, partitions added by Produce

    @property
    def bumps_epoch(self) -> bool:
        return self >= TransactionVersion.V2


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class LogEnd(NamedTuple):
    """Where the log of a partition ended: `offset` is that of the next record."""

    partition: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    offset: Offset


class Transaction(NamedTuple):
    """What the coordinator knows of one transactional id.

    `started_ms` and `updated_ms` are ms since 1970. `next_producer_id` is set while a transaction
    ends whose producer id has no epoch left. `last_epoch` is not written to the log, as in Kafka.
    `log_ends` is set while a transaction ends: where its partitions ended when that was decided.
    Those that were offline then, or did not know their archive, are missing.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    last_epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NOT_STARTED
    client_version: TransactionVersion = TransactionVersion.V0
    log_ends: tuple[LogEnd, ...] = ()

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Clients never get the last epoch: the coordinator needs one to fence them with."""
        return is_exhausted(self.epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the coordinator is to abort it by itself."""
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != TIMEOUT_NEVER_MS
            and self.started_ms + self.timeout_ms < now_ms
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was idle for `transactional.id.expiration.ms`."""
        return self.state.is_idle and self.updated_ms <= now_ms - expiration_ms


class Transition(NamedTuple):
    """What a request comes to.

    `written` is to be appended to the transaction log before anything is answered, None if nothing
    changes. `identity` is what the client goes on with where the response has a place for it.
    """

    error_code: ErrorCode = ErrorCode.NONE
    written: Transaction | None = None
    identity: ProducerIdentity = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def is_exhausted(epoch: int) -> bool:
    """Whether no client may have a greater epoch than this one."""
    return epoch >= PRODUCER_EPOCH_MAX - 1


def _refused(code: ErrorCode) -> Transition:
    return Transition(error_code=code)


# --- InitProducerId --------------------------------------------------------------------------


def needs_producer_id(current: Transaction | None) -> bool:
    """Whether InitProducerId, or the end of a transaction of version 2, may need a new id."""
    return current is None or current.is_epoch_exhausted


def init_producer(
    current: Transaction | None,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    fresh_id: int | None,
    server_version: TransactionVersion,
    now_ms: int,
) -> Transition:
    """A producer begins: a new epoch fences the one before it, and what that left open is aborted.

    `expected` is what a producer brings that recovers from an error (KIP-360). `fresh_id` must be
    there where `needs_producer_id` says so. While a transaction has to be aborted first, or is
    ending, the answer is CONCURRENT_TRANSACTIONS, and the client asks again.
    """
    if current is None:
        assert fresh_id is not None, transactional_id
        current = Transaction(
            transactional_id=transactional_id,
            producer_id=fresh_id,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    if current.state.is_ending:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_continue(current, expected):
        return _refused(ErrorCode.PRODUCER_FENCED)
    if current.state is TransactionState.ONGOING:
        fenced = fence_and_abort(
            current, fresh_id=fresh_id, server_version=server_version, now_ms=now_ms
        )
        return Transition(error_code=ErrorCode.CONCURRENT_TRANSACTIONS, written=fenced.written)
    begun = current._replace(
        previous_producer_id=current.producer_id,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NOT_STARTED,
        updated_ms=now_ms,
    )
    if current.is_epoch_exhausted and (expected is None or expected.epoch == current.epoch):
        assert fresh_id is not None, current
        last = NO_PRODUCER_EPOCH if expected is None else current.epoch
        begun = begun._replace(producer_id=fresh_id, epoch=0, last_epoch=last)
    elif expected is None:
        begun = begun._replace(epoch=current.epoch + 1, last_epoch=NO_PRODUCER_EPOCH)
    elif current.epoch in (NO_PRODUCER_EPOCH, expected.epoch):
        begun = begun._replace(epoch=current.epoch + 1, last_epoch=current.epoch)
    elif expected.epoch != current.last_epoch:
        return _refused(ErrorCode.PRODUCER_FENCED)
    # Else the client repeats a call that succeeded: it gets the same epoch once more.
    return Transition(written=begun, identity=begun.identity)


def _may_continue(current: Transaction, expected: ProducerIdentity) -> bool:
    """Whether a producer that names its id may still be the newest one of its transactional id."""
    return (
        current.epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        # It may repeat the call that gave it another id, without having seen the answer.
        or (expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch))
    )


# --- a transaction grows ---------------------------------------------------------------------


def check_producer(current: Transaction | None, producer: ProducerIdentity) -> ErrorCode:
    """Whether this producer may work on its transaction now."""
    if current is None or current.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state.is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def add_partitions(
    current: Transaction | None,
    producer: ProducerIdentity,
    partitions: AbstractSet[TopicPartition],
    *,
    client_version: TransactionVersion,
    now_ms: int,
) -> Transition:
    """Partitions join the transaction, which begins with the first of them."""
    if current is not None and current.state.is_ending:
        # Before all else: the producer may have the next identity already, and its id.
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    code = check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return _refused(code)
    assert current is not None
    is_ongoing = current.state is TransactionState.ONGOING
    if is_ongoing and partitions <= current.partitions:
        return Transition()
    return Transition(
        written=current._replace(
            previous_producer_id=current.producer_id,
            state=TransactionState.ONGOING,
            partitions=current.partitions | partitions,
            started_ms=current.started_ms if is_ongoing else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )
    )


def verify_partitions(
    current: Transaction | None,
    producer: ProducerIdentity,
    partitions: AbstractSet[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition is part of the producer's transaction; nothing is added (KIP-890)."""
    code = check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, code)
    assert current is not None
    return {
        partition: (
            ErrorCode.NONE if partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
        )
        for partition in partitions
    }


# --- a transaction ends ----------------------------------------------------------------------


def end_transaction(
    current: Transaction | None,
    producer: ProducerIdentity,
    *,
    is_commit: bool,
    client_version: TransactionVersion,
    fresh_id: int | None,
    now_ms: int,
) -> Transition:
    """A client commits or aborts. `fresh_id` must be there where `needs_producer_id` says so."""
    if current is None:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version.bumps_epoch:
        return _end_with_bump(
            current, producer, is_commit=is_commit, fresh_id=fresh_id, now_ms=now_ms
        )
    if current.producer_id != producer.producer_id:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.epoch != producer.epoch:
        return _refused(ErrorCode.PRODUCER_FENCED)
    if current.state.is_ending:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.state is TransactionState.ONGOING:
        return _ending(
            current,
            is_commit=is_commit,
            version=TransactionVersion.V0,
            fresh_id=None,
            now_ms=now_ms,
        )
    return _refused(_code_of_repeat(current.state, is_commit=is_commit))


def _end_with_bump(
    current: Transaction,
    producer: ProducerIdentity,
    *,
    is_commit: bool,
    fresh_id: int | None,
    now_ms: int,
) -> Transition:
    """Version 2. A repeat is known by its epoch, which is one below the present one.

    Unless the transaction that completed was one of version 1, whose end raised no epoch: then that
    is a zombie, which Kafka would give the identity of the present producer.

    While a transaction ends, its producer has the next identity already and waits in any case.

                      abort               commit
                      repeat   present    repeat   present
    EMPTY             fenced   aborts     fenced   invalid
    COMPLETE_ABORT    done     aborts     fenced   invalid
    COMPLETE_COMMIT   invalid  aborts     done     invalid

    A commit that finds an abort of its epoch is no repeat: the coordinator aborted the transaction
    in the meantime, because it timed out. Its producer is fenced, as by version 1 (KAFKA-20785).
    """
    if current.state.is_ending:
        return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_next_id = (
        current.previous_producer_id == producer.producer_id
        and producer.epoch == PRODUCER_EPOCH_MAX - 1
        and current.epoch == 0
    )
    is_repeat = current.client_version.bumps_epoch and (
        is_next_id or current.epoch == producer.epoch + 1
    )
    if current.producer_id != producer.producer_id and not is_next_id:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_present = current.epoch == producer.epoch
    if current.state is TransactionState.COMPLETE_COMMIT:
        is_valid = is_repeat or is_present
    elif current.state is TransactionState.COMPLETE_ABORT:
        is_valid = is_present or (is_repeat and not is_commit)
    else:
        is_valid = is_present
    if not is_valid:
        return _refused(ErrorCode.PRODUCER_FENCED)
    if current.state is TransactionState.ONGOING or (
        current.state.is_idle and not is_commit and not is_repeat
    ):
        # A client that is not sure whether a transaction is open aborts it all the same.
        return _ending(
            current,
            is_commit=is_commit,
            version=TransactionVersion.V2,
            fresh_id=fresh_id,
            now_ms=now_ms,
        )
    if current.state.is_idle and not is_repeat:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    code = _code_of_repeat(current.state, is_commit=is_commit)
    return Transition(error_code=code, identity=current.identity) if not code else _refused(code)


def _code_of_repeat(state: TransactionState, *, is_commit: bool) -> ErrorCode:
    """What the end of a transaction is answered that has ended already."""
    done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    return ErrorCode.NONE if state is done else ErrorCode.INVALID_TXN_STATE


def fence_and_abort(
    current: Transaction,
    *,
    fresh_id: int | None,
    server_version: TransactionVersion,
    now_ms: int,
) -> Transition:
    """The coordinator aborts an open transaction under an epoch that its producer does not have.

    For a transaction that timed out, and for one whose producer was replaced. The new epoch is
    told to nobody: the next InitProducerId raises it once more.
    """
    assert current.state is TransactionState.ONGOING, current
    if not server_version.bumps_epoch:
        epoch = min(current.epoch + 1, PRODUCER_EPOCH_MAX)
        current = current._replace(epoch=epoch, last_epoch=NO_PRODUCER_EPOCH)
    return _ending(
        current, is_commit=False, version=server_version, fresh_id=fresh_id, now_ms=now_ms
    )


def _ending(
    current: Transaction,
    *,
    is_commit: bool,
    version: TransactionVersion,
    fresh_id: int | None,
    now_ms: int,
) -> Transition:
    """The outcome is decided: from the moment that this is in the log it cannot change."""
    next_producer_id, epoch, last_epoch = NO_PRODUCER_ID, current.epoch, current.last_epoch
    if version.bumps_epoch:
        if current.is_epoch_exhausted:
            assert fresh_id is not None, current
            next_producer_id = fresh_id
        # The last epoch of all stays as it is: better to go on with it than never to end.
        epoch, last_epoch = min(current.epoch + 1, PRODUCER_EPOCH_MAX), current.epoch
    ending = current._replace(
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        started_ms=(current.started_ms if current.state is TransactionState.ONGOING else now_ms),
        updated_ms=now_ms,
        client_version=version,
    )
    if version.bumps_epoch:
        return Transition(written=ending, identity=_identity_after(ending))
    return Transition(written=ending)


def _identity_after(ending: Transaction) -> ProducerIdentity:
    """The identity with which the producer goes on."""
    if ending.client_version.bumps_epoch and ending.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdentity(ending.next_producer_id, 0)
    return ending.identity


def complete(current: Transaction, *, now_ms: int) -> Transaction:
    """What is written once every partition has its marker."""
    assert current.state.is_ending, current
    is_commit = current.state is TransactionState.PREPARE_COMMIT
    after = _identity_after(current)
    return current._replace(
        producer_id=after.producer_id,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        epoch=after.epoch,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
        log_ends=(),
    )


def retire(current: Transaction, *, now_ms: int) -> Transaction:
    """Returns the state in which the epochs of its producer id are used up.

    For a state that may be an old one: the id may have had greater epochs, which the next
    InitProducerId would give once more, and it takes another producer id instead. Whoever has this
    one is fenced, and an open transaction aborts. A decided outcome stays.
    """
    retired = current._replace(
        next_producer_id=NO_PRODUCER_ID,
        epoch=PRODUCER_EPOCH_MAX,
        last_epoch=NO_PRODUCER_EPOCH,
        # An end of version 2 is taken for a repeated one by the epoch before.
        client_version=TransactionVersion.V0,
    )
    if current.state is not TransactionState.ONGOING:
        return retired
    fenced = fence_and_abort(
        retired, fresh_id=None, server_version=TransactionVersion.V0, now_ms=now_ms
    )
    assert fenced.written is not None, current
    return fenced.written

"""A producer that writes on after the broker lost something: what it gets acknowledged counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import eventually
from tests.system.transactions.wire_producer import WireProducer

# The coordinator is not ready yet: clients ask again.
_RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def write_on(
    producer: WireProducer, topic: str, values: Iterable[bytes], *, refused_max: int
) -> None:
    """Commits each value in a transaction of its own; begins again whenever that is refused."""
    refused = 0
    for value in values:
        while not _is_committed(producer, topic, value):
            refused += 1
            assert refused <= refused_max, (value, producer.epoch)
            producer.begin()


def retried(call: Callable[[], ErrorCode]) -> ErrorCode:
    """Calls until the coordinator is ready; returns the answer."""
    codes: list[ErrorCode] = []

    def is_answered() -> bool:
        codes.append(call())
        return codes[-1] not in _RETRIED

    assert eventually(is_answered)
    return codes[-1]


def _is_committed(producer: WireProducer, topic: str, value: bytes) -> bool:
    code = retried(lambda: producer.try_send(topic, value))
    return code is ErrorCode.NONE and producer.commit() is ErrorCode.NONE

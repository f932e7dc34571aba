"""Client quotas: rates of clients, and their throttle times.

Each method records usage and returns the throttle time in ms, 0 for most clients. The caller sends
the answer at once with `throttle_time_ms` and mutes the connection for that time (KIP-219).

Without quotas `is_active` is False and no caller asks, so unlimited brokers pay no cost.

Kafka measures rates by the wall clock. Here time is monotonic: a clock that is set back by an hour
must not throttle clients for an hour.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.quotas.table import QuotaKey, QuotaTable, Sharers
from strandline.storage.clock import Clock
from strandline.storage.config.definition import INT, INT_MAX, key
from strandline.storage.rates import TokenBucket, WindowRate

# Clients with a measured rate, per kind of quota. The least recently used one is dropped, and with
# it at most eleven seconds of history.
CLIENTS_MAX = 10_000
# Kafka bounds a pause for processing time by one window, because such a rate is a noisy one.
REQUEST_WINDOWS_MAX = 1

GaugeT = TypeVar("GaugeT", WindowRate, TokenBucket)


def _monotonic_ms(clock: Clock) -> int:
    """Returns the time of quotas."""
    return int(clock.monotonic_s() * 1000)


class _Gauges(Generic[GaugeT]):
    """One gauge per sharer of an allowance, the latest CLIENTS_MAX of them."""

    def __init__(self, make: Callable[[], GaugeT]) -> None:
        self._make: Callable[[], GaugeT] = make
        self._gauges: OrderedDict[Sharers, GaugeT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._gauges)

    def of(self, sharers: Sharers) -> GaugeT:
        gauge = self._gauges.get(sharers)
        if gauge is None:
            gauge = self._gauges[sharers] = self._make()
            if len(self._gauges) > CLIENTS_MAX:
                self._gauges.popitem(last=False)
        else:
            self._gauges.move_to_end(sharers)
        return gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindows:
    """The time windows of rate measurements: all full windows but the current one."""

    count: int = key(
        "quota.window.num",
        INT,
        11,
        "Windows over which the broker measures a client's rate for its quota.",
        minimum=1,
        maximum=1000,
    )
    length_ms: int = key(
        "quota.window.size.seconds",
        INT,
        1,
        "Length of one of these windows.",
        minimum=1,
        maximum=3600,
        convert=lambda seconds: 1000 * seconds,
    )

    @property
    def full_ms(self) -> int:
        """The length of all full windows, which a known rate covers."""
        return (self.count - 1) * self.length_ms

    @property
    def burst_s(self) -> float:
        """A bucket holds what all windows together may take."""
        return self.count * self.length_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRates:
    """Connections per second: of all listeners together (None: any number), and of single ones."""

    all_listeners: float | None = key(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        "Connections per second that the broker accepts; further ones wait in the queue of the"
        " system. This and max.connections may be set for one listener:"
        " listener.name.<name>.<property>.",
        minimum=1,
        dynamic=True,
        convert=lambda rate: rate if rate < INT_MAX else None,
    )
    # Of listeners with a rate of their own, by name.
    by_listener: Mapping[str, float] = field(default_factory=dict)


class MutationQuota:
    """controller_mutation_rate during one request that creates or deletes partitions.

    Strict (newer versions): topics beyond the quota are refused. Permissive: all are carried out,
    and the client is throttled afterwards.
    """

    def __init__(
        self, bucket: TokenBucket, bound: float, clock: Clock, *, burst_s: float, strict: bool
    ) -> None:
        self._bucket = bucket
        self._bound = bound
        self._burst_s = burst_s
        self._clock = clock
        self._strict = strict
        self.throttle_ms = 0

    def take(self, partitions: int) -> bool:
        """Returns whether so many partitions may be created or deleted; counts them if so."""
        bucket, bound = self._bucket, self._bound
        bucket.tokens(self._clock.monotonic_s(), per_s=bound, burst=bound * self._burst_s)
        if self._strict and (throttle_ms := bucket.debt_ms(bound)):
            self.throttle_ms = throttle_ms
            return False
        bucket.take(partitions)
        self.throttle_ms = 0 if self._strict else bucket.debt_ms(bound)
        return True


class ClientQuotas:
    """The quotas of this broker's clients. Used on the event loop only."""

    def __init__(self, clock: Clock, windows: QuotaWindows) -> None:
        self._clock = clock
        self._windows = windows
        self._table = QuotaTable({})
        rate = partial(
            WindowRate, count=windows.count, length_ms=windows.length_ms, counts_idle=True
        )
        self._produced = _Gauges(rate)
        self._fetched = _Gauges(rate)
        self._requested = _Gauges(rate)
        self._mutated = _Gauges(TokenBucket)
        self._connected = _Gauges(rate)
        self._accepted = _Gauges(rate)
        # Read by every request: without quotas nothing else is.
        self.is_active = False

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Adopts altered quotas; measured rates of clients stay."""
        if delta.client_quotas:
            self._table = QuotaTable(image.client_quotas)
            self.is_active = self._table.has_clients

    def produced(self, user: str, client_id: str, size_bytes: int) -> int:
        """producer_byte_rate: records a produce request of that size."""
        return self._record(
            self._produced, QuotaKey.PRODUCER_BYTE_RATE, user, client_id, size_bytes
        )

    def fetched(self, user: str, client_id: str, size_bytes: int) -> int:
        """consumer_byte_rate: records an answer of that size before it is sent."""
        return self._record(self._fetched, QuotaKey.CONSUMER_BYTE_RATE, user, client_id, size_bytes)

    def fetch_bytes_max(self, user: str, client_id: str) -> float:
        """Returns the size of the largest answer that the quota allows in its windows."""
        limit = self._table.find(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        if limit is None:
            return float("inf")
        return limit.bound * self._windows.full_ms / 1000

    def unfetched(self, user: str, client_id: str, size_bytes: int) -> None:
        """Reverts `fetched` for an answer that was replaced with an empty one."""
        limit = self._table.find(QuotaKey.CONSUMER_BYTE_RATE, user, client_id)
        if limit is not None:
            self._fetched.of(limit.sharers).record(-size_bytes, _monotonic_ms(self._clock))

    def requested(self, user: str, client_id: str, busy_s: float) -> int:
        """request_percentage: records the processing time of a request."""
        throttle_ms = self._record(
            self._requested, QuotaKey.REQUEST_PERCENTAGE, user, client_id, 100 * busy_s
        )
        return min(throttle_ms, REQUEST_WINDOWS_MAX * self._windows.length_ms)

    def connected(self, address: str) -> int:
        """connection_creation_rate: records a connection; refused connections do not count."""
        if not self._table.has_addresses:
            return 0
        bound = self._table.find_address(address)
        if bound is None:
            return 0
        now_ms = _monotonic_ms(self._clock)
        rate = self._connected.of((address, ""))
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(bound, now_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms

    def accepted(self, listener: str, rates: ConnectionRates) -> int:
        """max.connection.creation.rate: records an accepted connection and returns its delay.

        A delayed connection counts too. No delay is longer than a window, as in Kafka.
        """
        now_ms = _monotonic_ms(self._clock)
        wait_ms = 0
        for sharers, bound in (
            (("", ""), rates.all_listeners),
            ((listener, ""), rates.by_listener.get(listener)),
        ):
            if bound is not None:
                rate = self._accepted.of(sharers)
                rate.record(1, now_ms)
                wait_ms = max(wait_ms, rate.throttle_ms(bound, now_ms))
        return min(wait_ms, self._windows.length_ms)

    def mutation(self, user: str, client_id: str, *, strict: bool) -> MutationQuota | None:
        """controller_mutation_rate of one request; None without a limit."""
        if not self.is_active:
            return None
        limit = self._table.find(QuotaKey.CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        bucket = self._mutated.of(limit.sharers)
        return MutationQuota(
            bucket, limit.bound, self._clock, burst_s=self._windows.burst_s, strict=strict
        )

    def _record(
        self,
        gauges: _Gauges[WindowRate],
        key: QuotaKey,
        user: str,
        client_id: str,
        value: float,
    ) -> int:
        limit = self._table.find(key, user, client_id)
        if limit is None:
            return 0
        now_ms = _monotonic_ms(self._clock)
        rate = gauges.of(limit.sharers)
        rate.record(value, now_ms)
        return rate.throttle_ms(limit.bound, now_ms)

    def __repr__(self) -> str:
        return (
            f"<ClientQuotas active={self.is_active} produced={len(self._produced)}"
            f" fetched={len(self._fetched)} requested={len(self._requested)}>"
        )

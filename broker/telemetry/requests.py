"""Counters of requests: times, bytes, versions and errors.

    frame in the buffer ──queue──► handler ──local──► answer there ──remote──► answer on its way

queue   time in the buffer while the loop served other requests
local   work of the broker: decoding, deciding, reading, encoding
remote  waits: for more records, an fsync, the object store, other members
total   all of them

Counting costs a few additions per request, and needs no lock, as it runs on the loop.
Quantiles come from counts by powers of two of a microsecond, interpolated, over the last one to two
minutes: accurate to a factor of two, which separates 1 ms from 30 ms, at the cost of one addition.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from strandline.broker.network.responses import Parts
from strandline.broker.protocol.schema.api import SPECS, ApiKey, ApiSpec
from strandline.broker.protocol.schema.schema import ArrayOf, Response, StructOf

# 2^63 us are 292,000 years: every wait fits.
BUCKETS = 64
WINDOW_S = 60.0
# Shorter times are the way from the socket to the handler, and count as no wait.
QUEUE_NOTED_S = 0.0002
QUANTILES = (0.5, 0.95, 0.99, 0.999)
# An answer may hold 60,000 partitions; errors after so many elements are not counted.
ERRORS_LOOKED_AT_MAX = 1000
NO_ERROR = 0
# The length field at the head of a frame.
_LENGTH = struct.Struct(">i").unpack_from


class Durations:
    """Durations of one kind: sum and count since the start, recent quantiles."""

    __slots__ = ("earlier", "latest", "older_count", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        # Frequent callers add to these two without a call, see `ApiTraffic.answered`.
        self.latest = [0] * BUCKETS
        self.earlier = [0] * BUCKETS
        self.older_count = 0

    @property
    def count(self) -> int:
        return self.older_count + sum(self.earlier) + sum(self.latest)

    def record(self, elapsed_s: float) -> None:
        self.sum_s += elapsed_s
        self.latest[int(elapsed_s * 1e6).bit_length()] += 1

    def turn(self) -> None:
        """Starts a new window; called every WINDOW_S."""
        self.older_count += sum(self.earlier)
        self.earlier = self.latest
        self.latest = [0] * BUCKETS

    def and_those_of(self, other: Durations) -> Durations:
        """Returns the sum of both, as of now."""
        both = Durations()
        both.sum_s = self.sum_s + other.sum_s
        both.older_count = self.older_count + other.older_count
        both.latest = [a + b for a, b in zip(self.latest, other.latest, strict=True)]
        both.earlier = [a + b for a, b in zip(self.earlier, other.earlier, strict=True)]
        return both

    def quantile_s(self, quantile: float) -> float:
        """Quantile over this window and the one before; NaN if they are empty."""
        counts = [a + b for a, b in zip(self.earlier, self.latest, strict=True)]
        rank = quantile * sum(counts)
        if not rank:
            return float("nan")
        for bucket, count in enumerate(counts):
            if count and rank <= count:
                lower = 1 << bucket >> 1 if bucket else 0
                upper = 1 << bucket
                return (lower + (upper - lower) * rank / count) / 1e6
            rank -= count
        return (1 << BUCKETS) / 1e6


class ApiTraffic:
    """The counters of one API.

    Most requests are answered at once; their local time is the total time, and recorded once.
    """

    __slots__ = (
        "_first_version",
        "_late_local",
        "_late_total",
        "_prompt",
        "_queue",
        "by_version",
        "errors",
        "failed_answers",
        "remote",
        "request_bytes",
        "response_bytes",
        "throttle_s",
        "throttled",
    )

    def __init__(self, first_version: int, last_version: int) -> None:
        self._first_version = first_version
        self.by_version = [0] * (last_version - first_version + 1)
        # Error codes, and the number of answers that have each.
        self.errors: Counter[int] = Counter()
        self.failed_answers = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.throttled = 0
        self.throttle_s = 0.0
        self._queue = Durations()
        self.remote = Durations()
        self._prompt = Durations()
        self._late_local = Durations()
        self._late_total = Durations()

    def started(self, version: int, request_bytes: int, queue_s: float) -> None:
        self.by_version[version - self._first_version] += 1
        self.request_bytes += request_bytes
        if queue_s > QUEUE_NOTED_S:
            self._queue.record(queue_s)

    def answered(self, parts: Parts, local_s: float) -> None:
        """Counts `parts` that are sent without any wait; none for acks=0."""
        if parts:
            self.response_bytes += _LENGTH(parts[0])[0] + 4  # type: ignore[arg-type]  # in memory
        # As `Durations.record`, without a call: nearly every request comes through here.
        prompt = self._prompt
        prompt.sum_s += local_s
        prompt.latest[int(local_s * 1e6).bit_length()] += 1

    def answered_late(self, parts: Parts, *, local_s: float, remote_s: float) -> None:
        """As `answered`, after a wait of `remote_s`."""
        if parts:
            self.response_bytes += _LENGTH(parts[0])[0] + 4  # type: ignore[arg-type]  # in memory
        self._late_local.record(local_s)
        self._late_total.record(local_s + remote_s)
        self.remote.record(remote_s)

    def add_throttle(self, throttle_ms: int) -> None:
        self.throttled += 1
        self.throttle_s += throttle_ms / 1000

    def failed(self, code: int) -> None:
        """Counts an answer with this one error code."""
        self.errors[code] += 1
        self.failed_answers += 1

    @property
    def queue(self) -> Durations:
        """Queue times; recent requests that did not wait count as zeros."""
        noted, all_of_them = self._queue, self.total
        queue = noted.and_those_of(Durations())
        queue.older_count = 0
        queue.latest[0] += max(0, sum(all_of_them.latest) - sum(noted.latest))
        queue.earlier[0] += max(0, sum(all_of_them.earlier) - sum(noted.earlier))
        queue.older_count = max(0, all_of_them.count - sum(queue.latest) - sum(queue.earlier))
        return queue

    @property
    def local(self) -> Durations:
        return self._prompt.and_those_of(self._late_local)

    @property
    def total(self) -> Durations:
        return self._prompt.and_those_of(self._late_total)

    def versions(self) -> Iterator[tuple[int, int]]:
        """Yields the requested versions with their counts."""
        for index, count in enumerate(self.by_version):
            if count:
                yield self._first_version + index, count

    def codes(self) -> Iterator[tuple[int, int]]:
        """Yields error codes with their counts; NO_ERROR has the answers without any."""
        yield NO_ERROR, max(0, self.total.count - self.failed_answers)
        yield from sorted(self.errors.items())

    def turn(self) -> None:
        for durations in (
            self._queue,
            self.remote,
            self._prompt,
            self._late_local,
            self._late_total,
        ):
            durations.turn()


class RemoteWaits:
    """Requests of one kind that wait for the object store, and their timeouts."""

    __slots__ = ("expired", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.expired = 0


class RequestTraffic:
    """The counters of all APIs of this node; every served API has a row from the start."""

    def __init__(self, specs: Iterable[ApiSpec] = SPECS.values()) -> None:
        self.apis: Mapping[ApiKey, ApiTraffic] = {
            spec.key: ApiTraffic(spec.supported.lowest, spec.supported.highest) for spec in specs
        }
        # Kafka's purgatories RemoteFetch and RemoteListOffsets.
        self.remote_fetches = RemoteWaits()
        self.remote_lookups = RemoteWaits()
        # Connections closed because of the client's bytes.
        self.refused_total = 0

    async def turn_forever(self) -> None:
        """Starts new windows every WINDOW_S, whether or not a page is read."""
        while True:
            await asyncio.sleep(WINDOW_S)
            self.turn()

    def turn(self) -> None:
        """Starts new windows."""
        for traffic in self.apis.values():
            traffic.turn()


# --- errors ----------------------------------------------------------------------------------

ERROR_FIELD = "error_code"
_paths: dict[type, tuple[bool, Sequence[str]]] = {}


def count_errors(response: Response, traffic: ApiTraffic) -> None:
    """Counts the error codes anywhere in an answer, up to ERRORS_LOOKED_AT_MAX elements."""
    left = ERRORS_LOOKED_AT_MAX
    has_error = False
    pending: list[object] = [response]
    while pending and left > 0:
        value = pending.pop()
        left -= 1
        has_code, inner = _paths.get(type(value)) or _paths_of(type(value))
        if has_code:
            code: int = getattr(value, ERROR_FIELD)
            if code != NO_ERROR:
                traffic.errors[code] += 1
                has_error = True
        for name in inner:
            nested = getattr(value, name)
            if isinstance(nested, list | tuple):
                pending.extend(nested[:left])
            elif nested is not None:
                pending.append(nested)
    traffic.failed_answers += has_error


def _paths_of(cls: type) -> tuple[bool, Sequence[str]]:
    """Whether a struct has an error code, and which of its fields may hold structs with one."""
    fields = getattr(cls, "fields", {})
    inner = tuple(
        name
        for name, field in fields.items()
        if isinstance(field.kind, StructOf)
        or (isinstance(field.kind, ArrayOf) and isinstance(field.kind.element, StructOf))
    )
    paths = _paths[cls] = (ERROR_FIELD in fields, inner)
    return paths

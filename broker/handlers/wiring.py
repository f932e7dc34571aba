"""Every API that is served, with the handler that serves it, for the composition root.

Produce and Fetch have ways of their own through the dispatcher; the others are a table by API key.
What every client asks first is made at once. All else is late: its modules, a tenth of a start, are
loaded with the first request for one of them, which takes 20 ms longer for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.cluster.replica_moves import ReplicaMoves
from strandline.broker.coordination.runtime import GroupCoordinator
from strandline.broker.handlers.dispatch import Dispatcher, Handler
from strandline.broker.handlers.fetch import FetchHandler
from strandline.broker.handlers.metadata import MetadataHandlers
from strandline.broker.handlers.produce import ProduceHandler
from strandline.broker.handlers.services import RequestContext, Services
from strandline.broker.listeners import Listener
from strandline.broker.protocol.api import SPECS, ApiKey
from strandline.broker.protocol.schema import Request
from strandline.storage.local.log_dir import LogDirs

if TYPE_CHECKING:
    from strandline.storage.tiering.manager import TieringManager

# The dispatcher knows these by itself.
_DISPATCHED = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS})


def make_dispatcher(
    services: Services,
    fetch: FetchHandler,
    *,
    groups: GroupCoordinator,
    log_dirs: LogDirs,
    moves: ReplicaMoves,
    tiering: TieringManager | None,
    advertised: Callable[[str], Listener],
    decoding: Executor,
) -> Dispatcher:
    """`advertised` is where clients of a listener are sent, `decoding` runs what is large.

    `tiering` is None without an object store.
    """
    metadata = MetadataHandlers(services, advertised)
    late = LateHandlers(partial(_make_late, services, groups, log_dirs, moves, tiering))
    handlers: dict[ApiKey, Handler] = {
        ApiKey.METADATA: metadata.metadata,
        ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
        ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
    }
    for key in [spec.key for spec in SPECS.values()]:
        if key not in _DISPATCHED | handlers.keys():
            handlers[key] = late.handler(key)
    return Dispatcher(services, ProduceHandler(services), fetch, handlers, decoding=decoding)


class LateHandlers:
    """Handlers that are made, all of them, when one is needed for the first time."""

    def __init__(self, make: Callable[[], Mapping[ApiKey, Handler]]) -> None:
        self._make = make
        self._made: Mapping[ApiKey, Handler] | None = None
        self._promised: set[ApiKey] = set()

    def handler(self, key: ApiKey) -> Handler:
        """What stands for the handler of `key`."""
        self._promised.add(key)

        def pass_on(request: Request, context: RequestContext) -> object:
            if self._made is None:
                self._made = self._make()
                assert self._made.keys() == self._promised, self._made.keys() ^ self._promised
            return self._made[key](request, context)

        return pass_on  # type: ignore[return-value]  # each handler knows its own answer


def _make_late(
    services: Services,
    groups: GroupCoordinator,
    log_dirs: LogDirs,
    moves: ReplicaMoves,
    tiering: TieringManager | None,
) -> Mapping[ApiKey, Handler]:
    from strandline.broker.handlers.admin import make_admin_handlers
    from strandline.broker.handlers.configs import ConfigHandlers
    from strandline.broker.handlers.groups import make_group_handlers
    from strandline.broker.handlers.offsets import OffsetHandlers
    from strandline.broker.handlers.producer_ids import ProducerIdHandler
    from strandline.broker.handlers.sasl import no_authenticate, no_handshake
    from strandline.broker.handlers.topics import TopicHandlers

    topics = TopicHandlers(services)
    offsets = OffsetHandlers(services)
    return {
        ApiKey.CREATE_TOPICS: topics.create_topics,
        ApiKey.DELETE_TOPICS: topics.delete_topics,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
        ApiKey.DESCRIBE_CONFIGS: ConfigHandlers(services).describe_configs,
        ApiKey.INIT_PRODUCER_ID: ProducerIdHandler(services).init_producer_id,
        ApiKey.LIST_OFFSETS: offsets.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
        ApiKey.DELETE_RECORDS: offsets.delete_records,
        ApiKey.SASL_HANDSHAKE: no_handshake,
        ApiKey.SASL_AUTHENTICATE: no_authenticate,
        **make_group_handlers(services, groups),
        **make_admin_handlers(services, log_dirs, moves, tiering),
    }

"""Every API that is served, with the handler that serves it, for the composition root.

Produce and Fetch have ways of their own through the dispatcher; the others are a table by API key.
What every client asks first is made at once. All else is late: its modules, a tenth of a start, are
loaded a second after it (`serving.py`), or with the first request for one of them if that comes
sooner: everybody waits 20 ms for it then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from importlib import import_module

from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.config.listeners import Listener
from strandline.broker.coordination.runtime.runtime import GroupCoordinator
from strandline.broker.handlers.dispatch.dispatch import Dispatcher, Handler
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.metadata.metadata import MetadataHandlers
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.schema import Request
from strandline.storage.local.log_dirs.log_dirs import LogDirs

log = logging.getLogger(__name__)

# The dispatcher knows these by itself.
_DISPATCHED = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS})


def make_dispatcher(
    services: Services,
    fetch: FetchHandler,
    *,
    groups: GroupCoordinator,
    log_dirs: LogDirs,
    moves: ReplicaMoves,
    advertised: Callable[[str], Listener],
    decoding: Executor,
) -> Dispatcher:
    """`advertised` is where clients of a listener are sent, `decoding` runs what is large."""
    metadata = MetadataHandlers(services, advertised)
    late = LateHandlers(partial(_make_late, services, groups, log_dirs, moves))
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
) -> Mapping[ApiKey, Handler]:
    from strandline.broker.handlers.wiring.late_handlers import make_late_handlers

    return make_late_handlers(services, groups, log_dirs, moves)


def load_late_handlers() -> None:
    """Imports what the first request for a late handler would import; blocks for 20 ms.

    Where that fails (no file descriptor is left, say), that request tries again.
    """
    try:
        import_module("strandline.broker.handlers.wiring.late_handlers")
    except (ImportError, OSError) as error:
        log.warning("handlers not loaded yet", extra={"fields": {"error": str(error)}})

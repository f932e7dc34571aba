"""Sync again and again: every interval, until it is told to stop.

    sync, wait, sync, wait ...     `stop` ends it after the round that runs, or out of the wait
    the store, the catalog or the registry does   told, and tried again after the interval; the
    not answer                                    first sync opens the catalog, so that this holds
                                                  for the start, too
    the archive has no such topic yet             the same; after the first sync it ends it, for
                                                  then somebody has deleted the topic
    all else that a sync raises                   ends it: it would be raised again

The table is the state, so nothing is kept from one sync to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.errors import StrandlineError, TierUnavailable, UnknownTopic


def sync_at_intervals(
    sync: Callable[[], SyncReport],
    *,
    interval_s: float,
    stop: threading.Event,
    on_sync: Callable[[SyncReport], None],
    on_wait: Callable[[StrandlineError], None],
) -> None:
    """Calls `sync` until `stop` is set; `on_sync` is told what each one did, `on_wait` why not.

    Raises what `sync` raises, except outages, and UnknownTopic before the first sync.
    """
    has_topic = False
    while not stop.is_set():
        try:
            on_sync(sync())
            has_topic = True
        except (TableUnavailable, TierUnavailable) as error:
            on_wait(error)
        except UnknownTopic as error:
            if has_topic:
                raise
            on_wait(error)
        stop.wait(interval_s)

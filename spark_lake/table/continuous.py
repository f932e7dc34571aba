"""Sync again and again: every interval, until it is told to stop.

    sync, wait, sync, wait ...     `stop` ends it after the round that runs, or out of the wait
    the store or the catalog does not answer      told, and tried again after the interval
    all else that a sync raises                    ends it: it would be raised again

The table is the state, so nothing is kept from one sync to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.errors import StorageError, TierUnavailable


def sync_at_intervals(
    sync: Callable[[], SyncReport],
    *,
    interval_s: float,
    stop: threading.Event,
    on_sync: Callable[[SyncReport], None],
    on_outage: Callable[[StorageError], None],
) -> None:
    """Calls `sync` until `stop` is set; `on_sync` is told what each one did.

    Raises what `sync` raises, except outages.
    """
    while not stop.is_set():
        try:
            on_sync(sync())
        except (TableUnavailable, TierUnavailable) as error:
            on_outage(error)
        stop.wait(interval_s)

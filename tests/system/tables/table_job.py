"""A sync or a maintenance of a table, as a process of its own that a test kills.

    python table_job.py sync|maintain REQUEST      fields of `TableRequest`, as JSON

For a maintenance everything is small, and everything is old.
"""

from __future__ import annotations

import json
import sys

from strandline.spark_lake.table.run import TableRequest, TableRun
from strandline.spark_lake.table.upkeep.maintain import DAY_MS, MaintainSettings


class NoProgress:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


def main(what: str, request: str) -> None:
    run = TableRun(TableRequest(**json.loads(request)))
    if what == "sync":
        run.sync(NoProgress())
    else:
        run.maintain(
            None,
            MaintainSettings(
                file_bytes=1 << 20, small_files_min=2, expire_age_ms=-DAY_MS, orphan_age_ms=-DAY_MS
            ),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

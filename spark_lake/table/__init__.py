"""Tables of a topic's archive: plan, rows, files, commits; see docs/how-to/tables.md.

from strandline.spark_lake.table import sync
sync(spark, "s3://bucket/prefix", "orders", "lake.orders", options={"valueFormat": ...})
"""

# Not loaded when it is used, as elsewhere: the name of the module `sync` would come in between.
from strandline.spark_lake.table.spark_sync import sync

__all__ = ["sync"]

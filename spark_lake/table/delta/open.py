"""A Delta table by its URL, in a folder or a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.io import load_file_io

from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.table.delta.store import DeltaLayout, DeltaStore
from strandline.spark_lake.table.iceberg.catalogs import (
    endpoint_url_of,
    region_of,
    store_properties,
)
from strandline.storage.errors import InvalidConfig


def open_store(
    url: str,
    s3: S3Options,
    *,
    partition_by: Sequence[str],
    sort_columns: Sequence[tuple[str, str]],
    codec: str,
) -> DeltaStore:
    """Sends no request yet. Raises InvalidConfig for a transform that Delta lacks."""
    for one in partition_by:
        if "(" in one and not (one.startswith("day(") and one.endswith(")")):
            raise InvalidConfig(
                f"--partition-by {one!r}: a Delta table takes columns, and day(COLUMN)"
            )
    return DeltaStore(
        url,
        DeltaLayout(partition_by=partition_by, sort_columns=sort_columns, codec=codec),
        io=load_file_io(store_properties(s3), url),
        storage_options=_storage_options(s3),
    )


def _storage_options(s3: S3Options) -> dict[str, str]:
    endpoint_url = endpoint_url_of(s3)
    given = {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_REGION": region_of(s3),
        "AWS_ACCESS_KEY_ID": s3.key,
        "AWS_SECRET_ACCESS_KEY": s3.secret,
        "AWS_SESSION_TOKEN": s3.token,
        "AWS_ALLOW_HTTP": "true" if (endpoint_url or "").startswith("http://") else None,
    }
    return {name: value for name, value in given.items() if value is not None}

"""How a catalog and its files reach the bucket."""

from __future__ import annotations

import pytest

from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.table.iceberg.catalogs import store_properties


def test_a_store_is_found_by_the_variables_that_boto3_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    found = store_properties(S3Options())
    assert found["s3.endpoint"] == "http://store:9000"
    assert found["s3.region"] == "eu-central-1"


def test_options_come_before_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    found = store_properties(S3Options(endpoint_url="http://other:9000", region="us-west-2"))
    assert found["s3.endpoint"] == "http://other:9000"
    assert found["s3.region"] == "us-west-2"

"""An S3 server behind TLS, whose certificate a private authority has issued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from strandline.broker.cli import main
from strandline.broker.config.loading import load_config
from strandline.broker.server.environment import open_archive
from strandline.spark_lake import scan
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig, TierUnavailable
from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket
from tests.support.certificates import Authority
from tests.support.tls_proxy import tls_proxy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import make_batches
from tests.system.tiers.tiered_broker import REGION, SEGMENT_BYTES, TIERED

pytestmark = [pytest.mark.slow, pytest.mark.s3]

BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return tmp_path / "authority.pem"


@pytest.fixture
def endpoint(s3_bucket: S3Bucket, authority: Path, tmp_path: Path) -> Iterator[str]:
    issuer = Authority()
    issuer.write(authority)
    own = issuer.issue("s3").write(tmp_path / "s3.pem")
    server_port = urlsplit(s3_bucket.endpoint_url).port
    assert server_port is not None
    with tls_proxy(server_port, own) as port:
        yield f"https://127.0.0.1:{port}"


def test_broker_commands_and_queries_trust_the_authority_that_they_are_told(
    make_broker: MakeBroker,
    s3_bucket: S3Bucket,
    endpoint: str,
    authority: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = make_broker(
        endpoint_url=endpoint, settings={"strandline.remote.s3.ca.file": str(authority)}
    )
    broker.start()
    with broker.client("sealed") as client:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        archived_count = broker.wait_until_archived(client)
    broker.stop()
    place = ["--remote", s3_bucket.url, "--endpoint-url", endpoint, "--region", REGION]
    trusting = [*place, "--ca-file", str(authority)]
    assert main(["archive", "ls", *trusting]) == 0
    assert "sealed" in capsys.readouterr().out
    folders = ["--set", f"log.dirs={tmp_path / 'restored'}"]
    assert main(["restore", *trusting, *folders]) == 0
    assert list((tmp_path / "restored").glob("sealed-0/*.log"))
    options = {"s3.endpoint.url": endpoint, "s3.region": REGION}
    found = scan(s3_bucket.url, "sealed", options={**options, "s3.ca.file": str(authority)})
    assert sum(batch.num_rows for batch in found) >= archived_count > 0
    assert main(["archive", "ls", *place]) != 0
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err


def test_a_server_of_another_authority_is_not_trusted(
    s3_bucket: S3Bucket, endpoint: str, tmp_path: Path
) -> None:
    other = Authority("Another").write(tmp_path / "other.pem")
    for ca_file in (None, str(other)):
        store = open_store(s3_bucket.url, endpoint_url=endpoint, region=REGION, ca_file=ca_file)
        with pytest.raises(TierUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            store.check()
        store.close()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_authorities_is_refused(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    config = load_config(
        None, ["strandline.remote.url=s3://bucket/a", f"strandline.remote.s3.ca.file={file}"]
    )
    with pytest.raises(InvalidConfig, match=r"ca\.pem"):
        open_archive(config, SystemClock())

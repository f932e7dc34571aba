"""Transactions that an older state wrote are read for ever, and end as they were decided.

    formats/transactions/2026-11-24.tar.xz    both versions, committed and aborted; one that is
                                              open, one whose broker died after its first marker

In it lie `data`, a log folder after a kill, `bucket`, and `expected.json`. It is never made anew: a
format that changes gets another archive beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.spark_lake import scan
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.group_calls import committed
from tests.system.restart.written import archive_settings, expected_of, unpack
from tests.system.transactions.admin_calls import describe
from tests.system.transactions.committed import committed_values, is_stable
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

FORMATS = Path(__file__).parent / "formats" / "transactions"
TOPIC = "tx"
NONE = ErrorCode.NONE


@pytest.fixture(params=sorted(path.name for path in FORMATS.glob("*.tar.xz")))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(FORMATS / request.param, tmp_path)
    return tmp_path


def settings_of(folder: Path) -> dict[str, str]:
    return {
        **archive_settings(folder),
        # What is open was begun long ago.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    }


def beginnings(client: WireClient) -> list[str]:
    """What the committed values begin with."""
    return [value[:4].decode() for value in committed_values(client, TOPIC)]


def offset_of(client: WireClient, group: str) -> int:
    return committed(client, group, TOPIC)


def is_decided(client: WireClient) -> bool:
    return bool(describe(client, "deciding").transaction_state == "CompleteCommit")


def test_a_folder_with_transactions_goes_on(written: Path) -> None:
    expected = expected_of(written)
    with BrokerProcess(written, settings=settings_of(written)) as broker:
        with WireClient(broker.port) as client:
            eventually(lambda: is_decided(client))
            # What is behind an open transaction is not shown.
            assert beginnings(client) == expected["committed"]
            opened = expected["open"]
            producer = WireProducer(client, opened["transactional_id"], version=1)
            producer.producer_id, producer.epoch = opened["producer_id"], opened["epoch"]
            assert describe(client, producer.transactional_id).transaction_state == "Ongoing"
            assert offset_of(client, opened["group"]) == -1
            assert producer.commit() is NONE
            assert beginnings(client) == [*expected["committed"], "open", expected["decided"]]
            expected["offsets"][opened["group"]] = opened["offset"]
            found = {group: offset_of(client, group) for group in expected["offsets"]}
            assert found == expected["offsets"]
        assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()


def test_the_bucket_alone_has_what_was_committed(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, url = expected_of(written), f"file://{written}/bucket"
    assert main(["archive", "verify", "--remote", url]) == 0, capsys.readouterr()
    rows = scan(url, TOPIC).read_all().to_pylist()
    assert [row["value"][:4].decode() for row in rows] == expected["committed"]
    restored = written / "restored"
    given = {"node.id": "1", "log.dirs": str(restored / "data"), **settings_of(written)}
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    assert main(["restore", *sets]) == 0, capsys.readouterr()
    with (
        BrokerProcess(restored, settings=settings_of(written)) as broker,
        WireClient(broker.port) as client,
    ):
        eventually(lambda: is_stable(client, TOPIC))
        assert beginnings(client) == expected["committed"]
        # When the bucket was written last, this one was open too.
        del expected["offsets"]["group deciding"]
        found = {group: offset_of(client, group) for group in expected["offsets"]}
        assert found == expected["offsets"]
        assert offset_of(client, "group deciding") == -1
        assert offset_of(client, expected["open"]["group"]) == -1

"""A store that takes no writes when the broker starts: what is archived is served all the same."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.health import Page, check_broker
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.metrics import METRICS_ON, get, metric
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches, with_epoch
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

BATCHES = make_batches(size_bytes=3 * SEGMENT_BYTES // 2)
OWNER = "strandline_remote_archive_owned"
REFUSED = "strandline_remote_writes_refused_seconds"
WRITES = "PUT|POST|DELETE"


@pytest.fixture
def broker(make_broker: MakeBroker, fault_proxy: FaultProxy) -> TieredBroker:
    """Stopped; of `cold` everything lies in the archive alone, of `warm` the end is on its disk."""
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=METRICS_ON)
    broker.start()
    for topic, all_or_not in (("cold", ARCHIVE_ALL), ("warm", {})):
        with broker.client(topic) as client:
            client.create_topic({**TIERED, **FREE_LOCALLY, **all_or_not})
            client.produce(BATCHES)
            if all_or_not:
                broker.wait_until_all_cold(client)
            else:
                broker.wait_until_archived(client)
                broker.wait_until_freed(client)
    broker.stop()
    return broker


def troubles(broker: TieredBroker) -> dict[str, str]:
    """What `strandline status` finds wrong, but for the disk of the machine."""
    checks = check_broker(Page(get(broker, "/metrics")), "")
    return {one.what: one.trouble for one in checks if one.trouble and "disk of" not in one.what}


@pytest.mark.parametrize(
    ("status", "code", "error", "logged", "said"),
    [
        (
            403,
            "AccessDenied",
            "AccessDenied",
            "writing to the remote tier is forbidden",
            "writing is forbidden",
        ),
        (507, "InsufficientStorage", "StoreFull", "remote tier has no room", "there is no room"),
    ],
)
def test_a_start_with_the_right_to_read_alone_serves_the_archive_and_goes_on_when_it_may_write(
    broker: TieredBroker,
    archive: Archive,
    fault_proxy: FaultProxy,
    status: int,
    code: str,
    error: str,
    logged: str,
    said: str,
) -> None:
    before = archive.contents()
    fault_proxy.clear()
    fault_proxy.add(Rule(action=Action.STATUS, method=WRITES, status=status, code=code, times=-1))
    broker.start()
    later = [
        with_epoch(batch, 1)
        for batch in make_batches(base_offset=end_of(BATCHES), size_bytes=3 * SEGMENT_BYTES)
    ]
    for topic in ("cold", "warm"):
        with broker.client(topic) as client:
            assert client.read(0, end_of(BATCHES)) == BATCHES
            client.produce(later)
            assert client.read(0, end_of(BATCHES + later)) == BATCHES + later

    (line,) = broker.warnings("what is archived is served, nothing is copied")
    assert logged in line
    assert code in line
    assert broker.warnings("cannot be reached") == []
    eventually(lambda: metric(broker, OWNER) == 1, timeout_s=WAIT_S)
    assert f'{REFUSED}{{error="{error}",' in get(broker, "/metrics")
    found = troubles(broker)
    assert said in found["writes to the archive"]
    assert "owns the archive" not in found

    # It tries again, with one request of each kind and not with one for each partition's records.
    probes = fault_proxy.count("PUT", "probe/")
    eventually(lambda: fault_proxy.count("PUT", "probe/") > probes, timeout_s=WAIT_S)
    assert fault_proxy.count("PUT|POST", r"topics/.*\.(log|meta|tail|json)") == 0
    assert archive.contents() == before

    fault_proxy.clear()
    for topic in ("cold", "warm"):
        with broker.client(topic) as client:
            broker.wait_until_archived(client)
            assert client.read(0, end_of(BATCHES + later)) == BATCHES + later
    eventually(lambda: troubles(broker) == {}, timeout_s=WAIT_S)
    assert REFUSED + "{" not in get(broker, "/metrics")
    archive.wait_until_tidy()
    assert archive.findings() == []

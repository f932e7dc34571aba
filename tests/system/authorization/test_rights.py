"""Each request needs exactly the right that Kafka's table says, in each form of its answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.broker.handlers.authorization.table import UNCHECKED
from strandline.broker.protocol.schema.api import SPECS, ApiKey, api_name
from tests.support.wire import WireClient
from tests.system.authorization.probes import PROBES
from tests.system.authorization.rights import ROWS, Row
from tests.system.authorization.world import World, ruled_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ruled_broker(tmp_path_factory.mktemp("broker")) as made:
        made.fill()
        yield made


@pytest.fixture(scope="module")
def nobody(world: World) -> Iterator[WireClient]:
    with WireClient(world.broker.port) as client:
        yield client


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.row)
def test_a_request_needs_the_right_of_its_row_and_no_other(
    row: Row, world: World, nobody: WireClient
) -> None:
    probe = PROBES[row.row]
    world.allow_only([*row.given, *row.everything_else()])
    without = probe.outcomes(nobody, world)
    assert without == dict.fromkeys(probe.versions, row.denied), "without the right"
    for enough in (row.needed, *row.or_else):
        world.allow_only([*row.given, enough])
        allowed = probe.outcomes(nobody, world)
        for version, outcome in allowed.items():
            assert not outcome & row.denied, (version, enough)


def test_the_table_has_each_served_request_that_needs_a_right() -> None:
    assert {row.row for row in ROWS} == PROBES.keys()
    free = UNCHECKED | {ApiKey.API_VERSIONS}
    named = {row.api for row in ROWS}
    assert {api_name(spec.key) for spec in SPECS.values() if spec.key not in free} == named

"""Rules are in the bucket with the metadata: a restored broker and a replica decide by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
)
from tests.support.broker import START_TIMEOUT_S, BrokerProcess, eventually
from tests.support.forked import STRANDLINE, run_process
from tests.support.ports import ReservedPort
from tests.support.wire import WireClient
from tests.system.authorization.rights import rights
from tests.system.authorization.world import ruled_broker, settings
from tests.system.calls import append, batch, create_topic, describe_topic, fetch

pytestmark = pytest.mark.slow

DENIED = 29
POLICY_VIOLATION = 44
CREATION = CreateAclsRequest(
    creations=[
        AclCreation(
            resource_type=2,
            resource_name="u",
            principal="User:ANONYMOUS",
            host="*",
            operation=3,
            permission_type=3,
        )
    ]
)
DELETION = DeleteAclsRequest(
    filters=[
        DeleteAclsFilter(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
    ]
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is left of a broker with one rule: the settings that name its archive."""
    place = tmp_path_factory.mktemp("archive")
    tier = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": place.as_uri(),
        "strandline.remote.active.segment.upload.ms": "100",
    }
    with ruled_broker(tmp_path_factory.mktemp("first"), **tier) as world:
        create_topic(world.admin, "t", configs={"remote.storage.enable": "true"})
        create_topic(world.admin, "u", configs={"remote.storage.enable": "true"})
        append(world.admin, "t", batch())
        world.allow_only(rights("TOPIC t READ"))

        def is_mirrored() -> bool:
            entries = (one for one in (place / "metadata").rglob("*") if one.is_file())
            has_rule = any(b"ACCESS_CONTROL_ENTRY_RECORD" in one.read_bytes() for one in entries)
            # An object counts once a manifest names it.
            manifests = (place / "topics").rglob("manifest.json")
            return has_rule and any(json.loads(one.read_bytes()).get("tail") for one in manifests)

        assert eventually(is_mirrored)
    return tier


def assert_decides(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as nobody:
        assert describe_topic(nobody, "t").error_code == 0
        assert describe_topic(nobody, "u").error_code == DENIED
        assert fetch(nobody, "u").error_code == DENIED


def test_a_restored_broker_has_the_rules(archive: dict[str, str], tmp_path: Path) -> None:
    port = ReservedPort()
    mine = {**settings(port.number), **archive}
    command = [*STRANDLINE, "restore"]
    for name, value in {"node.id": "1", "log.dirs": str(tmp_path / "data"), **mine}.items():
        command += ["--set", f"{name}={value}"]
    assert run_process(command, folder=tmp_path, timeout_s=START_TIMEOUT_S).returncode == 0
    with BrokerProcess(tmp_path, settings=mine) as broker:
        assert_decides(broker)


def test_a_replica_decides_by_the_rules_of_the_bucket(
    archive: dict[str, str], tmp_path: Path
) -> None:
    port = ReservedPort()
    replica = BrokerProcess(
        tmp_path,
        settings={**settings(port.number), **archive, "strandline.remote.replica.poll.ms": "100"},
    )
    replica.command = ("serve", "--read-only")
    with replica as broker:
        assert_decides(broker)
        with WireClient(broker.port) as nobody:
            assert eventually(
                lambda: fetch(nobody, "t").records_bytes or fetch(nobody, "t").records
            )

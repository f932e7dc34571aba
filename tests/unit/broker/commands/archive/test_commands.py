"""`strandline archive verify`: what it prints of what is wrong, and what it drops."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.archive import commands as archive_commands
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import METADATA_BOUNDARY_KEY, VERIFY_KEY
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.manifest.verification import load_verifications
from strandline.storage.tiering.audit.findings import Damage, Finding
from tests.unit.broker.commands.archive_rig import Archive

LONG_DETAIL = "is not what the manifest says, " * 20
TOPIC_ID = uuid.uuid4()


def test_pieces_of_the_open_segment_are_given_up_when_somebody_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = Archive(tmp_path)
    archive.store.delete(archive.pieces[:1])
    before = archive.store.get(archive.manifest_key)
    words = ["archive", "verify", *archive.options, "--drop-pieces"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert archive.pieces[0] in told.out
    assert "add --yes" in told.err
    assert archive.store.get(archive.manifest_key) == before
    main([*words, "--yes"])
    assert f"dropped: {archive.pieces[0]}" in capsys.readouterr().out


def findings(count: int) -> list[Finding]:
    return [
        Finding(
            partition=TopicIdPartition("orders", TOPIC_ID, 3),
            damage=next(iter(Damage)),
            key=f"topics/orders-{TOPIC_ID}/3/{number:020d}-0-{uuid.uuid4().hex}.log",
            base_offset=number,
            detail=f"{LONG_DETAIL}{number}",
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, 1000])
def test_each_finding_is_one_line_with_everything(
    capsys: pytest.CaptureFixture[str], count: int
) -> None:
    found = findings(count)
    archive_commands._print_findings(found)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + count + 1
    for line, finding in zip(lines[3:-1], found, strict=True):
        for part in (finding.key, finding.detail, finding.advice, finding.damage.value):
            assert part in line


def test_a_check_of_the_whole_archive_is_remembered_in_it_with_its_kind_and_its_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = Archive(tmp_path)
    main(["archive", "ls", *archive.options])
    listed = capsys.readouterr().out
    assert "manifest ok" in listed
    assert "last `archive verify`: never" in listed
    main(["archive", "verify", *archive.options, "--topic", archive.topic])
    assert load_verifications(archive.store) == {}
    main(["archive", "verify", *archive.options])
    whole = load_verifications(archive.store)["checksums"]
    assert whole.segment_count == 2
    archive.store.delete(archive.pieces[:1])
    main(["archive", "verify", *archive.options, "--quick"])
    runs = load_verifications(archive.store)
    # The first one is kept: another depth replaces nothing.
    assert runs["checksums"] == whole
    assert runs["sizes"].finding_count == whole.finding_count + 1
    capsys.readouterr()
    main(["archive", "ls", *archive.options])
    assert "last `archive verify`: sizes 20" in capsys.readouterr().out


def test_a_damaged_boundary_of_the_metadata_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = Archive(tmp_path)
    create_cluster_info(archive.store, ClusterInfo(cluster_id="c-1"))
    archive.store.put(METADATA_BOUNDARY_KEY, b"{}")
    main(["archive", "verify", *archive.options])
    assert f"{METADATA_BOUNDARY_KEY}: " in capsys.readouterr().err


def test_a_note_of_a_check_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for content in (b"", b"{}", b"not ours"):
        archive.store.put(VERIFY_KEY, content)
        assert load_verifications(archive.store) == {}
    main(["archive", "verify", *archive.options])
    assert list(load_verifications(archive.store)) == ["checksums"]

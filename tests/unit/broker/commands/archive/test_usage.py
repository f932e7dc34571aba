"""`strandline archive usage`: prices as people type them, and what only waits for its deletion."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.prices import price_of, usd
from strandline.broker.tools.client.failures import WrongUse
from strandline.storage.remote.manifest.entries import DeletedEntry
from strandline.storage.remote.manifest.manifest import Manifest
from tests.unit.broker.commands.archive_rig import CLOCK, Archive


def test_a_price_is_a_class_and_an_amount() -> None:
    assert price_of("STANDARD=0.023") == ("STANDARD", 0.023)
    assert price_of("FREE=0") == ("FREE", 0.0)


@pytest.mark.parametrize("text", ["", "0.023", "=1", "STANDARD=", "STANDARD=-1", "A=inf", "A=nan"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="is no price"):
        price_of(text)


def test_money_is_written_in_one_way() -> None:
    assert [usd(amount) for amount in (0.00234, 1.5, 12_345)] == [
        "0.0023 USD",
        "1.50 USD",
        "12,345.00 USD",
    ]


def test_objects_that_wait_for_their_deletion_have_a_line_of_their_own_in_both_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What one command counts and the other does not is named, so that they agree."""
    archive = Archive(tmp_path)
    spare = archive.pieces[0].replace(".tail", "00.log")
    archive.store.put(spare, b"x" * 1000)
    manifest = Manifest.decode(archive.store.get(archive.manifest_key))
    mark = DeletedEntry(log_key=spare, meta_key=spare, marked_ms=CLOCK.now_ms(), size_bytes=1000)
    marked = replace(manifest, deleting=(*manifest.deleting, mark))
    archive.store.put(archive.manifest_key, marked.encode())
    main(["archive", "usage", *archive.options, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["marked_by_topic"][archive.topic]["size_bytes"] >= 1000
    main(["archive", "usage", *archive.options])
    told = capsys.readouterr().out
    assert "of it marked" in told
    assert "marked for deletion: " in told
    main(["archive", "ls", *archive.options])
    assert "not in these sizes: " in capsys.readouterr().out

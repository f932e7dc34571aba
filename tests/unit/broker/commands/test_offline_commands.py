"""A folder or a bucket that is not what was meant is never called whole or empty."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.open_store import open_store
from tests.unit.broker.commands.archive_rig import Archive


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (("verify", "{folder}"), 2, "log.dirs"),
        (("verify", "{folder}/absent"), 2, "no such folder"),
        (("dump-log", "{folder}"), 2, "name a file in it"),
        (("archive", "ls", "--remote", "file://{folder}"), 1, "strandline.remote.url"),
        (("archive", "show", "--remote", "file://{folder}", "--topic", "t"), 1, "without --topic"),
        (("archive", "orphans", "--remote", "file://{folder}"), 2, "strandline.remote.url"),
        (("archive", "verify", "--remote", "file://{folder}"), 3, "strandline.remote.url"),
        (
            ("restore", "--remote", "file://{folder}", "--set", "log.dirs={folder}/new"),
            1,
            "strandline.remote.url",
        ),
    ],
)
def test_what_holds_nothing_of_a_broker_is_refused_with_what_to_do(
    words: tuple[str, ...],
    code: int,
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([word.format(folder=tmp_path) for word in words]) == code
    told = capsys.readouterr()
    assert advice in told.err
    assert "whole" not in told.out


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "--topic", "t"), ("ls", "--topic", "t")], ids=" ".join
)
def test_an_archive_that_has_nothing_yet_says_when_it_will(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker has claimed it; who just made a topic there has the right place."""
    store = open_store(f"file://{tmp_path}")
    create_cluster_info(store, ClusterInfo(cluster_id="cluster-of-the-tests00"))
    store.close()
    assert main(["archive", words[0], "--remote", f"file://{tmp_path}", *words[1:]]) == 1
    told = capsys.readouterr().err
    assert "remote.storage.enable=true" in told
    assert "segment.bytes" in told
    assert "strandline.remote.url" not in told


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "ls"),
        ("archive", "show"),
        ("archive", "verify"),
        ("archive", "orphans"),
        ("archive", "retention"),
        ("lake", "plan"),
    ],
    ids=" ".join,
)
def test_a_topic_that_is_not_there_ends_every_command_with_one_code(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it ends `strandline topic describe`, whose cluster says so: with 1."""
    store = open_store(f"file://{tmp_path}")
    create_cluster_info(store, ClusterInfo(cluster_id="cluster-of-the-tests00"))
    store.close()
    assert main([*words, "--remote", f"file://{tmp_path}", "--topic", "absent"]) == 1
    told = capsys.readouterr()
    assert "no topic" in told.err
    assert "absent" in told.err
    assert not told.out


@pytest.mark.parametrize("words", [(), ("--topic", "orders")], ids=["all", "orders"])
def test_a_partition_that_is_not_archived_is_told_from_a_topic_that_is_not(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = Archive(tmp_path)
    words = tuple(word.replace("orders", archive.topic) for word in words)
    assert main(["archive", "show", *archive.options, *words, "--partition", "7"]) == 1
    told = capsys.readouterr().err
    assert "no partition 7 of" in told
    assert "no topic" not in told


def test_an_interrupt_while_a_command_still_loads_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strandline.broker.cli.make_parser", interrupt)
    assert main(["topic", "list"]) == 130
    assert "strandline: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module", "advice"),
    [
        (("archive", "ls", "--remote", "file:///a"), "archive.tables.print_partitions", ""),
        (
            ("archive", "verify", "--remote", "file:///a", "--state", "{folder}/done.json"),
            "archive.commands.verify",
            "done.json: the same command continues from there",
        ),
        (
            ("restore", "--remote", "file:///a", "--set", "log.dirs={folder}/new"),
            "restore_command.restore",
            "run the same command again before a broker starts",
        ),
    ],
)
def test_who_interrupts_a_command_is_told_how_to_go_on(
    words: tuple[str, ...],
    module: str,
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> int:
        (tmp_path / "done.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(f"strandline.broker.commands.{module}", interrupt)
    assert main([word.format(folder=tmp_path) for word in words]) == 130
    told = capsys.readouterr().err
    assert "strandline: interrupted" in told
    assert advice in told
    assert "Traceback" not in told


def test_a_log_folder_without_a_partition_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    assert main(["verify", str(tmp_path)]) == 0
    assert "whole" in capsys.readouterr().out


def test_a_state_that_cannot_be_read_is_to_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, state = tmp_path / "archive", tmp_path / "state"
    archive.mkdir()
    store = open_store(f"file://{archive}")
    create_cluster_info(store, ClusterInfo(cluster_id="cluster-of-the-tests00"))
    store.close()
    state.write_text('{"format": "strandline-verify')
    words = ["archive", "verify", "--remote", f"file://{archive}", "--state", str(state)]
    assert main(words) == 2
    told = capsys.readouterr()
    assert f"{state}: no JSON" in told.err
    assert "remove the file" in told.err
    assert "whole" not in told.out


def test_a_state_that_is_no_file_is_named_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, state = tmp_path / "archive", tmp_path / "state"
    archive.mkdir()
    state.mkdir()
    with closing(open_store(f"file://{archive}")) as store:
        create_cluster_info(store, ClusterInfo(cluster_id="cluster-of-the-tests00"))
    words = ["archive", "verify", "--remote", f"file://{archive}", "--state", str(state)]
    assert main(words) == 1
    told = capsys.readouterr()
    assert f"strandline: cannot read {state}: Is a directory" in told.err
    assert "whole" not in told.out


@pytest.mark.parametrize(
    ("name", "cut_bytes", "code"),
    [(".log", 0, 0), (".log", 5, 3), (".index", 0, 0), (".index", 5, 3)],
)
def test_a_dump_of_a_damaged_file_ends_as_a_verify_does(
    name: str, cut_bytes: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts look at the exit code: the word may be in anybody's records."""
    value = b"DAMAGED: not this one"
    content = encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=value)])
    if name == ".index":
        content = bytes(7) + b"\x01"
    path = tmp_path / f"{0:020d}{name}"
    path.write_bytes(content[: len(content) - cut_bytes])
    assert main(["dump-log", "--verify", "--records", str(path)]) == code
    told = capsys.readouterr().out
    assert code == 0 or "DAMAGED" in told
    assert name != ".log" or code or "DAMAGED: not this one" in told

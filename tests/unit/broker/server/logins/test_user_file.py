"""Users of PLAIN in a file that changes while the broker runs."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.server.logins.user_file import UserFile, read_users
from strandline.storage.errors import InvalidConfig
from tests.support.manual_clock import ManualClock


def users_after(file: Path, *contents: str | None) -> list[dict[str, str]]:
    """What the broker knows after each content; None removes the file."""

    async def main(worker: ThreadPoolExecutor) -> list[dict[str, str]]:
        watched = UserFile(file, worker, ManualClock(), beside={})
        known = [dict(watched.passwords)]
        for content in contents:
            if content is None:
                file.unlink()
            else:
                # As Kubernetes and editors do: another file by the same name.
                file.with_suffix(".new").write_text(content)
                file.with_suffix(".new").rename(file)
            await watched.look()
            known.append(dict(watched.passwords))
        return known

    with ThreadPoolExecutor(1) as worker:
        return asyncio.run(main(worker))


def test_a_changed_file_brings_its_users(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# of the team\nalice=one two \nb\\=ob = x\n")
    assert users_after(file, "alice=2\ncarol=3\n", "") == [
        {"alice": "one two ", "b=ob": "x"},
        {"alice": "2", "carol": "3"},
        {},
    ]


def test_a_bad_file_is_told_without_its_content_and_the_last_good_users_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users"
    file.write_text("alice=secret")
    good = {"alice": "secret"}
    with caplog.at_level(logging.DEBUG):
        bad = ("=secret", "alice=secret\\uZ", "alice=secret\nalice=secret", "secret", None)
        found = users_after(file, *bad, "b=s2")
    assert found == [good] * 6 + [{"b": "s2"}]
    assert "not read, the last good ones stay" in caplog.text
    told = [str(getattr(record, "fields", "")) + record.getMessage() for record in caplog.records]
    assert not [line for line in told if "secret" in line]


def test_a_start_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        UserFile(tmp_path / "none", ThreadPoolExecutor(1), ManualClock(), beside={})
    (tmp_path / "large").write_bytes(b"a=b\n" * 300_000)
    with pytest.raises(InvalidConfig, match="larger than"):
        read_users(tmp_path / "large")
    (tmp_path / "latin").write_bytes(b"a=\xe9")
    with pytest.raises(InvalidConfig, match="no UTF-8"):
        read_users(tmp_path / "latin")


def test_a_pipe_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    os.mkfifo(tmp_path / "users")
    with pytest.raises(InvalidConfig, match="a pipe"):
        read_users(tmp_path / "users")

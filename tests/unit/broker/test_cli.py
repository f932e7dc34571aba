"""What the options of `strandline serve` stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.cli import configuration_of, make_parser
from strandline.broker.config.broker_config import BrokerConfig


def configured(*words: str) -> BrokerConfig:
    return configuration_of(make_parser("serve").parse_args(["serve", *words]))


def test_an_archive_needs_one_option() -> None:
    config = configured("--archive", "s3://bucket/prefix")
    assert config.archive.is_enabled
    assert config.archive.url == "s3://bucket/prefix"
    assert config.logs.retention_interval_ms == config.logs.first_delay_ms == 1000
    assert not configured().archive.is_enabled


def test_what_is_set_beside_an_archive_holds() -> None:
    key = "log.retention.check.interval.ms"
    config = configured("--archive", "s3://bucket/prefix", "--set", f"{key}=5")
    assert config.logs.retention_interval_ms == 5
    assert config.given[key] == "5"


@pytest.mark.parametrize("name", ["archive", "with a space"])
def test_a_folder_may_be_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = (tmp_path / name).as_uri()
    assert configured("--archive", f"./{name}").archive.url == wanted
    assert configured("--archive", str(tmp_path / name)).archive.url == wanted
    asked = make_parser("archive").parse_args(["archive", "ls", "--remote", f"./{name}"])
    assert asked.remote == wanted

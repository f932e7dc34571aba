"""Credentials of S3: where they come from, and what is said where there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
)
from strandline.storage.remote.open_store import open_store


def test_missing_credentials_are_a_matter_of_rights_and_say_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        open_store("s3://bucket", endpoint_url="http://127.0.0.1:1").head("key")

"""docs/configuration.md is what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker import config_docs
from strandline.broker.config_foreign import IGNORED, REFUSED
from strandline.broker.config_table import BROKER_CONFIGS
from strandline.storage.log_config import TOPIC_CONFIGS

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_docs.render(), (
        "run: python -m strandline.broker.config_docs docs/configuration.md"
    )


def test_every_key_is_on_the_page() -> None:
    page = config_docs.render()
    for name in (*BROKER_CONFIGS, *TOPIC_CONFIGS):
        assert f"| `{name}` |" in page
    for entry in (*IGNORED, *REFUSED):
        assert f"`{entry.pattern}" in page


def test_every_row_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in config_docs.render().splitlines():
        cells = line.count(" |") if line.startswith("|") else 0
        if cells and width:
            assert cells == width, line
        width = cells


def test_the_page_is_written_to_the_file_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config_docs.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == config_docs.render()
    assert config_docs.main([]) == 2
    assert "usage:" in capsys.readouterr().err

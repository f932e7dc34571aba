"""docs/reference/configuration.md is what the tables say."""

from __future__ import annotations

from scripts.docs import config_docs
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.config.unsupported_keys import IGNORED, REFUSED
from strandline.storage.config.log_config import TOPIC_CONFIGS


def test_every_key_has_a_heading() -> None:
    page = config_docs.render()
    for name in BROKER_CONFIGS:
        assert f"\n### `{name}`\n" in page
    for name in TOPIC_CONFIGS:
        assert f"\n### `{name}` (topic)\n" in page
    for entry in (*IGNORED, *REFUSED):
        assert f"`{entry.pattern}" in page


def test_every_row_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in config_docs.render().splitlines():
        cells = line.count(" |") if line.startswith("|") else 0
        if cells and width:
            assert cells == width, line
        width = cells

"""docs/protocol.md is what the version table says."""

from __future__ import annotations

from pathlib import Path

from strandline.broker import protocol_docs

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_committed_protocol_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == protocol_docs.render(), (
        "run: python -m strandline.broker.protocol_docs docs/protocol.md"
    )

"""Writes the generated pages of docs/: `make docs`.

    python -m scripts.docs.doc_pages docs

They are committed; a test compares them with the generated text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.docs import (
    alerts_docs,
    cli_docs,
    config_docs,
    log_docs,
    metrics_docs,
    protocol_docs,
    questions_docs,
)
from strandline.storage.files import write_atomically

PAGES = {
    "contributing/questions.md": questions_docs.render,
    "reference/alerts.md": alerts_docs.render,
    "reference/cli.md": cli_docs.render,
    "reference/configuration.md": config_docs.render,
    "reference/log-messages.md": log_docs.render,
    "reference/metrics.md": metrics_docs.render,
    "reference/protocol.md": protocol_docs.render,
}


def main(arguments: Sequence[str]) -> int:
    """Writes all pages into the given folder; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m scripts.docs.doc_pages docs\n")
        return 2
    for name, render in PAGES.items():
        path = Path(arguments[0]) / name
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, render().encode(), sync=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A command of ours in the process of the tests: one of its own takes half a second to start."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from strandline.broker.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """How a command ended, and what it printed to either stream."""

    code: int
    text: str


def run_here(words: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> Printed:
    """Runs `strandline` with these words, with nothing to read, and all of the environment."""
    printed = io.BytesIO()
    out = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    with (
        open(os.devnull) as nothing,
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "stdin", nothing),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return Printed(code=code, text=printed.getvalue().decode())

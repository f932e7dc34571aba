"""Draws what `strandline status` says of a small broker.

    python -m scripts.docs.status_picture docs/assets/status.svg

The broker is real, with an archive in a folder; the picture is what a terminal shows.
"""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110
STRANDLINE = str(Path(sys.executable).with_name("strandline"))
# The fonts of rich's template lie on another host, which a picture does not ask.
LEFT_OUT = re.compile(r"\s*@font-face \{.*?\}|\s*<!--.*?-->", re.DOTALL)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def main(target: Path) -> None:
    """Writes the picture."""
    port, metrics = free_port(), free_port()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": ""}

    def strandline(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [STRANDLINE, *arguments, "--bootstrap-server", f"127.0.0.1:{port}"],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen(
            [
                STRANDLINE,
                "serve",
                "--archive",
                f"{folder}/archive",
                "--set",
                f"log.dirs={folder}/data",
                "--set",
                f"listeners=PLAINTEXT://127.0.0.1:{port}",
                "--set",
                f"strandline.metrics.listener=http://127.0.0.1:{metrics}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while "orders" not in strandline("topic", "list"):
                tiered = ("--config", "remote.storage.enable=true", "--config", "segment.ms=2000")
                strandline("topic", "create", "orders", "--partitions", "3", *tiered)
                time.sleep(0.2)
            strandline("topic", "create", "clicks", "--config", "remote.storage.enable=true")
            for topic, count in (("orders", 3000), ("clicks", 400)):
                lines = "".join(f"{topic} number {number}\n" for number in range(count))
                strandline("produce", topic, given=lines)
            strandline("consume", "orders", "--group", "billing", "--until-end")
            time.sleep(6)
            strandline("produce", "orders", given="one more\n")
            time.sleep(2)
            said = strandline("status", "--metrics", f"http://127.0.0.1:{metrics}")
        finally:
            broker.terminate()
            broker.wait()
    for real, shown in (
        # As long as before: the figures stay below each other.
        (f"{folder}/data", "/srv/data".ljust(len(f"{folder}/data"))),
        (str(port), "9092"),
        (str(metrics), "9644"),
    ):
        said = said.replace(real, shown)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(said.rstrip()))
    svg = console.export_svg(title="strandline status", unique_id="status")
    target.write_text(LEFT_OUT.sub("", svg))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

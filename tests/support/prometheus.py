"""A real Prometheus on loopback, which scrapes one broker.

$STRANDLINE_PROMETHEUS is the folder that `scripts/prometheus` made: prometheus and promtool.
"""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from scripts.docs.alerts_docs import RULES
from tests.support.ministack import ServerProcess
from tests.support.ports import ReservedPort


def program(name: str) -> str:
    return str(Path(os.environ["STRANDLINE_PROMETHEUS"]).resolve() / "usr" / "bin" / name)


class Prometheus(ServerProcess):
    """A Prometheus that scrapes a broker each `scrape_s` seconds, with our rules."""

    def __init__(
        self, folder: Path, metrics: int, *, scrape_s: int = 1, instance: str | None = None
    ) -> None:
        """`metrics` is the port of the broker's page; `instance` names it, else its address."""
        interval = f"{scrape_s}s"
        target: dict[str, Any] = {"targets": [f"127.0.0.1:{metrics}"]}
        if instance is not None:
            target["labels"] = {"instance": instance}
        config = folder / "prometheus.json"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": interval, "evaluation_interval": interval},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [{"job_name": "strandline", "static_configs": [target]}],
                }
            )
        )
        port = ReservedPort()
        command = [program("prometheus"), f"--config.file={config}"]
        command += [f"--storage.tsdb.path={folder / 'series'}"]
        command += [f"--web.listen-address=127.0.0.1:{port.number}"]
        super().__init__(command, port=port, log_path=folder / "prometheus.log", environment={})

    def _answers(self) -> bool:
        """It answers queries, which it refuses while it opens its series."""
        try:
            with urllib.request.urlopen(f"{self.endpoint_url}/-/ready", timeout=60):
                return True
        except OSError:
            return False

    def ask(self, path: str, **arguments: str) -> Any:
        """Returns what its API answers: `query`, `query_range`, `rules`."""
        url = f"{self.endpoint_url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]

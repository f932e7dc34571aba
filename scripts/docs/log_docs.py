"""docs/reference/log-messages.md, from the source and the runbooks; see doc_pages.py.

A runbook is a section of a page in docs/runbooks. It names its messages and alerts so:

    ## `log folder full` — disk full
    * Log: `log folder full: appends are refused until there is room`
    * Alert: `StrandlineDiskNearlyFull` (`strandline_log_directory_free_bytes`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scripts.docs.log_messages import ROOT, LogMessage, log_messages

RUNBOOKS = ROOT / "docs" / "runbooks"

_INTRODUCTION = """\
# Log messages

<!-- Made by `make docs`. Do not edit. -->

For operators. Every message that the broker, the commands and the lake log at WARNING or ERROR,
with its runbook.
Search this page for the text of a log line; three dots stand for a part that varies. The broker
writes its log to standard error, one line per event:

```text
time level logger event key=value key=value
```

The broker logs most conditions that repeat once a minute at most, failed reads of the archive once
in ten minutes, and clients that it cut off once a second. The field `not_logged` of the next line
counts the lines that were left out. Level DEBUG shows them all: see
[log levels](../how-to/run.md#altering-a-running-broker).

| message | level | logger | runbook |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """A section of a page: its heading, its text, its messages, and the metric of each alert."""

    page: str
    heading: str
    text: str
    messages: tuple[str, ...]
    alerts: Mapping[str, str]

    @property
    def anchor(self) -> str:
        """The anchor that a code host gives to the heading."""
        return re.sub(r"[^\w\- ]", "", self.heading).strip().lower().replace(" ", "-")


def runbooks() -> Iterator[Runbook]:
    """Every runbook, page by page. Pages are read from the checkout: the wheel has none."""
    for path in sorted(RUNBOOKS.glob("*.md")):
        for section in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
            heading, _, text = section.partition("\n")
            yield Runbook(
                page=path.name,
                heading=heading,
                text=text,
                messages=tuple(re.findall(r"^\* Log: `(.+)`$", text, re.MULTILINE)),
                alerts=dict(re.findall(r"^\* Alert: `(\w+)` \(`(\w+)`\)$", text, re.MULTILINE)),
            )


def render() -> str:
    """The whole page. Raises SystemExit if a message has no runbook."""
    of_message = {text: runbook for runbook in runbooks() for text in runbook.messages}
    messages = list(log_messages())
    missing = [message.text for message in messages if message.text not in of_message]
    if missing:
        raise SystemExit(f"a page of docs/runbooks needs the line: * Log: `{missing[0]}`")
    return _INTRODUCTION + "".join(_line(message, of_message[message.text]) for message in messages)


def _line(message: LogMessage, runbook: Runbook) -> str:
    heading = re.sub(r"`", "", runbook.heading).replace("|", "\\|")
    link = f"[{heading}](../runbooks/{runbook.page}#{runbook.anchor})"
    return f"| `{message.text}` | {message.level} | {message.logger} | {link} |\n"

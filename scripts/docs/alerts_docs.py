"""docs/reference/alerts.md, from deploy/prometheus/alerts.yml and the runbooks: doc_pages.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from scripts.docs.log_docs import Runbook, runbooks
from scripts.docs.log_messages import ROOT
from strandline.broker.tools.client.health import QUEUED_COUNT_MIN

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"

_INTRODUCTION = """\
# Alerts

<!-- Made by `make docs`. Do not edit. -->

For operators who set up or get alerts. These alerts justify a page. The file
`deploy/prometheus/alerts.yml` of a checkout has them as rules for Prometheus;
[monitor](../how-to/monitor.md#prometheus-and-grafana) says how to load them. They need
`strandline.metrics.listener`. Each alert has a runbook with symptom, impact, check, fix and
verification.

`strandline status` reports the same conditions, at the same thresholds or earlier, with these
exceptions. It does not check what only a change over time shows: {not_in_status}.
And of StrandlineRequestsWait it checks only kinds of requests that came {queued:,} times or more
since the start.
"""

# How fast something changes, which a page of metrics does not say.
_OF_CHANGE = re.compile(r"\b(rate|delta|predict_linear)\(")

_TITLES = {
    "strandline-broker": "The broker",
    "strandline-cluster": "Several brokers",
    "strandline-disk": "Disks and logs",
    "strandline-archive": "The archive",
    "strandline-clients": "Clients",
}

_HEAD = """
| alert | expression | for | means | why this limit | runbook |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """One rule of the file; `hold` is how long its expression must hold, empty for at once."""

    group: str
    name: str
    expression: str
    hold: str
    severity: str
    annotations: Mapping[str, str]


def alert_rules() -> Iterator[AlertRule]:
    """Every rule, in the order of the file. The file is read from the checkout."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield AlertRule(
                group=group["name"],
                name=rule["alert"],
                expression=" ".join(rule["expr"].split()),
                hold=rule.get("for", ""),
                severity=rule["labels"]["severity"],
                annotations=rule["annotations"],
            )


def render() -> str:
    """The whole page."""
    rules = list(alert_rules())
    links = {runbook_command(runbook): runbook for runbook in runbooks()}
    moving = [rule.name for rule in rules if _OF_CHANGE.search(rule.expression)]
    parts = [_INTRODUCTION.format(not_in_status=", ".join(moving), queued=QUEUED_COUNT_MIN)]
    for group, title in _TITLES.items():
        lines = [_line(rule, links) for rule in rules if rule.group == group]
        parts.append(f"\n## {title}\n{_HEAD}" + "".join(lines))
    return "".join(parts)


def runbook_command(runbook: Runbook) -> str:
    """The command that prints a runbook: the annotation `runbook` of its alerts."""
    return f"strandline docs runbooks/{runbook.page.removesuffix('.md')}#{runbook.anchor}"


def _line(rule: AlertRule, links: Mapping[str, Runbook]) -> str:
    said = rule.annotations
    runbook = links[said["runbook"]]
    heading = runbook.heading.replace("`", "").replace("|", r"\|")
    path = f"../runbooks/{runbook.page}#{runbook.anchor}"
    expression = rule.expression.replace("|", r"\|")
    return (
        f"| {rule.name} ({rule.severity}) | `{expression}` | {rule.hold or 0} |"
        f" {said['description']} | {said['threshold']} | [{heading}]({path}) |\n"
    )

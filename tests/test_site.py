"""`make site`: it builds without a warning, has every page, and needs nothing from the network."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from scripts.docs.reader_questions import QUESTIONS
from strandline.broker.config.table import BROKER_SECTIONS, TOPIC_DEFAULTS
from strandline.storage.config.log_config import TOPIC_CONFIGS

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
# What it loads by itself, before a reader follows a link.
LOADED = frozenset({"script", "link", "img"})

pytestmark = pytest.mark.slow


@dataclass
class Page(HTMLParser):
    """Anchors of a page, and where its tags lead."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append((tag, value))


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    """Each page of the site; the one for what is not found has links from the root."""
    built = subprocess.run(
        [ROOT / "scripts" / "site", sys.executable],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert built.returncode == 0, built.stdout
    assert "Warning" not in built.stdout
    pages = {}
    for path in SITE.rglob("*.html"):
        page = Page()
        page.feed(path.read_text())
        if path.name != "404.html":
            pages[path] = page
    return pages


def test_the_site_has_every_page_and_a_search(site: dict[Path, Page]) -> None:
    sources = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    names = {path.with_name(path.name.replace("README", "index")) for path in sources}
    assert {SITE / name.with_suffix(".html") for name in names} - set(site) == set()
    assert "copy lag" in (SITE / "search.json").read_text().lower()


def test_the_search_of_the_site_leaves_out_decisions_and_notes(site: dict[Path, Page]) -> None:
    items = json.loads((SITE / "search.json").read_text())["items"]
    pages = {item["location"].partition("#")[0] for item in items}
    assert "docs/how-to/run.html" in pages
    assert not {page for page in pages if "/decisions/" in page or page.startswith("bench/")}


def test_each_property_has_a_place_on_the_site(site: dict[Path, Page]) -> None:
    anchors = site[SITE / "docs" / "reference" / "configuration.html"].anchors
    names = {key.name for keys in BROKER_SECTIONS.values() for key in keys}
    names |= {key.name for key in TOPIC_DEFAULTS}
    wanted = {name.replace(".", "") for name in names}
    wanted |= {f"{name.replace('.', '')}-topic" for name in TOPIC_CONFIGS}
    assert wanted - anchors == set()


def test_the_search_of_the_site_has_the_answer_of_each_question(site: dict[Path, Page]) -> None:
    """The browser looks for words in these texts."""
    texts: dict[str, str] = {}
    for item in json.loads((SITE / "search.json").read_text())["items"]:
        page = item["location"].partition("#")[0]
        texts[page] = texts.get(page, "") + html.unescape(re.sub(r"<[^>]+>", "", item["text"]))
    unanswered = []
    for question in QUESTIONS:
        page = question.place.partition("#")[0].removesuffix(".md")
        folder = "" if (ROOT / f"{page}.md").exists() else "docs/"
        if question.answer.replace("`", "") not in texts[f"{folder}{page}.html"]:
            unanswered.append(question.asked)
    assert unanswered == []


def test_every_link_of_the_site_leads_somewhere(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for _, link in page.links:
            place = urlsplit(link)
            if place.scheme:
                continue
            linked = (path.parent / unquote(place.path)).resolve() if place.path else path
            anchors = site[linked].anchors if linked in site else {place.fragment}
            if not linked.exists() or unquote(place.fragment) not in {*anchors, "", "__skip"}:
                broken.append(f"{path.relative_to(SITE)} -> {link}")
    assert broken == []


def test_every_alert_can_have_a_link_to_its_runbook_on_the_site(
    site: dict[Path, Page], tmp_path: Path
) -> None:
    """By the command of the page on monitoring."""
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    (command,) = re.findall(r"^sed -E .*\\\n.*$", page, re.MULTILINE)
    target = tmp_path / "alerts.yml"
    subprocess.run(command.replace("> alerts.yml", f"> {target}"), shell=True, cwd=ROOT, check=True)
    groups = yaml.safe_load(target.read_text())["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert urls
    for url in urls:
        place = urlsplit(url)
        assert place.fragment in site[SITE / place.path.lstrip("/")].anchors, url


def test_the_site_loads_nothing_from_the_network(site: dict[Path, Page]) -> None:
    loaded = {
        link
        for page in site.values()
        for tag, link in page.links
        if tag in LOADED and (urlsplit(link).scheme or link.startswith("//"))
    }
    assert loaded == set()


def test_a_step_behind_a_block_of_commands_keeps_its_number(site: dict[Path, Page]) -> None:
    """Python's Markdown begins each list with 1 by itself."""
    wrong = []
    for source in sorted((ROOT / "docs" / "runbooks").glob("[a-z]*.md")):
        blocks = re.sub(
            r"^ *```.*?^ *```", "```", source.read_text(), flags=re.MULTILINE | re.DOTALL
        )
        continued = re.findall(r"^```\n+([2-9])\. ", blocks, re.MULTILINE)
        html = (SITE / "docs" / "runbooks" / f"{source.stem}.html").read_text()
        wrong += [
            f"{source.name}: {step}" for step in continued if f'<ol start="{step}">' not in html
        ]
    assert wrong == []

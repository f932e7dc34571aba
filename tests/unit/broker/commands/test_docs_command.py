"""`strandline docs` finds pages by name or path, sections by words of their heading or text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.docs_command import find, pages
from strandline.storage.errors import InvalidConfig

DISK = """\
# Disks

## Disk full

Free some.

```bash
# disk full, a remark
```

### How much

Much.

## Disk slow

Wait.
"""
TEXTS = {"how-to/run.md": "# Run it\n", "runbooks/disk.md": DISK, "how-to/disk.md": "# A disk\n"}


@pytest.mark.parametrize("asked", ["docs/how-to/run.md", "how-to/run", "run", "run.md"])
def test_a_page_is_found_by_its_name_and_by_the_path_of_a_message(asked: str) -> None:
    assert find(TEXTS, asked) == "# Run it\n"


def test_pages_of_one_name_are_all_shown_and_a_path_names_one() -> None:
    assert find(TEXTS, "disk") == f"{DISK}\n# A disk\n"
    assert find(TEXTS, "how-to/disk") == "# A disk\n"


def test_words_find_the_sections_that_have_them_in_their_heading() -> None:
    found = find(TEXTS, "FULL disk")
    assert found.startswith("docs/runbooks/disk.md\n\n## Disk full\n")
    assert found.endswith("### How much\n\nMuch.\n")
    assert "Disk slow" not in found


def test_an_anchor_names_one_section_of_a_page() -> None:
    assert (
        find(TEXTS, "runbooks/disk#disk-slow") == "docs/runbooks/disk.md\n\n## Disk slow\n\nWait.\n"
    )
    assert find(TEXTS, "docs/runbooks/disk.md#how-much").endswith("### How much\n\nMuch.\n")


def test_of_several_sections_the_list_is_shown_without_those_within_another() -> None:
    texts = {**TEXTS, "how-to/full.md": "# Full disk\n\n## Disk full of logs\n"}
    assert find(texts, "disk full").splitlines() == [
        "how-to/full.md#full-disk",
        "runbooks/disk.md#disk-full",
    ]


def test_words_that_no_heading_has_find_the_sections_whose_text_has_them() -> None:
    assert find(TEXTS, "free some").startswith("docs/runbooks/disk.md\n\n## Disk full\n")
    texts = {
        **TEXTS,
        "decisions/0001-disks.md": "# Why\n\nWait.\n",
        "reference/x.md": "# X\nwait\n",
    }
    listed = ["runbooks/disk.md#disk-slow", "reference/x.md#x", "decisions/0001-disks.md#why"]
    assert find(texts, "wait").splitlines() == listed


def test_if_no_section_has_all_words_those_with_most_are_listed_headings_first() -> None:
    texts = {"how-to/a.md": "# A\nslow tape\n", **TEXTS}
    assert find(texts, "slow tape robot").splitlines()[1:] == ["how-to/a.md#a"]
    assert find(texts, "quantum slow").splitlines()[1:] == [
        "runbooks/disk.md#disk-slow",
        "how-to/a.md#a",
    ]


def test_without_words_every_page_is_listed_with_its_title() -> None:
    assert find(TEXTS, "").splitlines()[0] == "how-to/run.md     Run it"


def test_what_no_page_has_is_an_error_that_says_how_to_go_on() -> None:
    with pytest.raises(InvalidConfig, match="`strandline docs` lists pages"):
        find(TEXTS, "quantum")


def test_a_reader_that_has_enough_ends_the_command_without_an_error() -> None:
    """As `strandline docs | head` does; what is short is written only at the end."""
    command = [sys.executable, "-m", "strandline", "docs", "runbooks/configuration"]
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=buffered, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_checkout_has_the_pages_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "runbooks/disk.md" in pages()
    assert main(["docs", "docs/runbooks/disk.md"]) == 0
    assert capsys.readouterr().out == pages()["runbooks/disk.md"]

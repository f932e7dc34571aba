"""`strandline docs` finds pages by name or path, sections by words of their heading or text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.docs_command import LISTED_MAX, Finder, pages
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


def find(texts: dict[str, str], asked: str) -> str:
    return Finder(texts).find(asked)


@pytest.mark.parametrize("asked", ["docs/how-to/run.md", "how-to/run", "run", "run.md"])
def test_a_page_is_found_by_its_name_and_by_the_path_of_a_message(asked: str) -> None:
    assert find(TEXTS, asked) == "# Run it\n"


def test_pages_of_one_name_are_all_shown_and_a_path_names_one() -> None:
    assert find(TEXTS, "disk") == f"{DISK}\n# A disk\n"
    assert find(TEXTS, "how-to/disk") == "# A disk\n"


def test_a_section_that_fits_far_better_than_the_others_is_printed_before_their_list() -> None:
    found, others = find(TEXTS, "FULL disk").split("\nOther sections:\n")
    assert found.startswith("docs/runbooks/disk.md\n\n## Disk full\n")
    assert found.endswith("### How much\n\nMuch.\n")
    assert "runbooks/disk.md#disk-slow" in others.splitlines()


def test_an_anchor_names_one_section_of_a_page() -> None:
    assert (
        find(TEXTS, "runbooks/disk#disk-slow") == "docs/runbooks/disk.md\n\n## Disk slow\n\nWait.\n"
    )
    assert find(TEXTS, "docs/runbooks/disk.md#how-much").endswith("### How much\n\nMuch.\n")


def test_the_name_of_a_property_finds_its_sections() -> None:
    page = "# Configuration\n\n### `log.dirs`\n\nFolders.\n\n### `log.dir`\n\nA folder.\n"
    text = find({**TEXTS, "reference/configuration.md": page}, "log.dir")
    assert "A folder." in text
    assert "Folders." not in text


def test_sections_that_fit_alike_are_listed() -> None:
    texts = {**TEXTS, "how-to/full.md": "# Full disk\n\nFree some.\n"}
    first, second, *_ = find(texts, "disk is full").splitlines()
    assert {first, second} == {"how-to/full.md#full-disk", "runbooks/disk.md#disk-full"}


def test_words_are_those_of_the_text_and_not_parts_of_them() -> None:
    texts = {"a.md": "# Diagrams\n\nprograms, classes\n", "b.md": "# Memory\n\nRAM, SSE-KMS\n"}
    assert [Finder(texts).places(word) for word in ("ram", "SSE")] == [["b.md#memory"]] * 2


@pytest.mark.parametrize("asked", ["deleting", "Deletes", "delete.", "how do I delete it"])
def test_forms_of_a_word_are_one_word(asked: str) -> None:
    texts = {"a.md": "# A\n\nit was deleted\n", "b.md": "# B\n\nhow do I do it\n"}
    assert Finder(texts).places(asked) == ["a.md#a"]


def test_a_word_that_no_page_has_stands_for_one_that_is_spelt_nearly_so() -> None:
    texts = {"a.md": "# A\n\ncertificates\n", "b.md": "# B\n\npartition\n"}
    assert Finder(texts).places("certficate partitons") == ["a.md#a", "b.md#b"]
    assert Finder(texts).places("certain") == []


def test_a_rare_word_and_a_word_of_the_heading_count_more() -> None:
    texts = {
        "a.md": "# Wait\n\na disk\n",
        "b.md": "# Disk\n\nto wait\n",
        "c.md": "# Other\n\na disk, a tape\n",
    }
    assert Finder(texts).places("disk tape") == ["c.md#other", "b.md#disk", "a.md#wait"]


def test_words_in_the_order_of_the_text_count_more() -> None:
    texts = {"a.md": "# A\n\nis the disk full\n", "b.md": "# B\n\nthe disk is full\n"}
    assert Finder(texts).places("disk is full") == ["b.md#b", "a.md#a"]
    assert Finder(texts).places("disk full") == ["a.md#a", "b.md#b"]


def test_decisions_come_after_pages_that_say_the_same() -> None:
    texts = {"decisions/0001-disks.md": "# Why\n\nWait.\n", "how-to/disks.md": "# How\n\nWait.\n"}
    assert Finder(texts).places("wait") == ["how-to/disks.md#how", "decisions/0001-disks.md#why"]


def test_of_many_sections_the_first_are_listed() -> None:
    texts = {f"{number:03}.md": "# Page\n\ndisk\n" for number in range(100)}
    assert len(find(texts, "disk").splitlines()) == LISTED_MAX


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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("runbooks/disc", "nearest: runbooks/disk"),
        ("docs/runbooks/disk.md#no-such", "page 'docs/runbooks/disk.md' has no such section"),
        ("nothing.md", "lists pages"),
    ],
)
def test_a_page_that_is_not_there_is_an_error_and_no_search(asked: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match="there is no page") as refused:
        find(TEXTS, asked)
    assert said in str(refused.value)

"""Renders contributing/questions.md: what readers ask, and the seconds to each answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.docs.reader_questions import ANALYST, CONTRIBUTOR, OPERATOR, Question
from strandline.broker.commands.docs_command import Finder, pages

# A search, and the choice of a line of its list, take this long each.
HOP_SECONDS = 10
WORDS_PER_MINUTE = 250
# A reader who has found nothing by then asks somebody else.
SECONDS_MAX = 90
# A reader looks at the first lines of a list.
PLACES_MAX = 4

_CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"

_INTRODUCTION = f"""\
# Seconds to an answer

<!-- Made by `make docs`. Do not edit. -->

For contributors who write pages. The tables have the questions of an operator, an analyst and a new
contributor. Each question is what its reader types after `strandline docs`. CONTRIBUTING.md counts
as a page here; the command does not search it. `tests/test_questions.py` fails if the section with
the answer is not among the first {PLACES_MAX} that the search finds, or if an answer takes more
than {SECONDS_MAX} seconds.

The seconds are computed, not measured with people: {HOP_SECONDS} for the search, {HOP_SECONDS} more
if it lists the section without printing it, and the words of the section at {WORDS_PER_MINUTE} a
minute. Words count from the heading to the end of the paragraph, list, block of commands or row of
a table that has the answer. The sum is rounded up to ten.
"""


def finder() -> Finder:
    """Returns the search over the pages that a reader of a checkout has."""
    return Finder(pages() | {_CONTRIBUTING.name: _CONTRIBUTING.read_text()})


def seconds_to_answer(search: Finder, question: Question) -> float:
    """Returns the time for which a reader of ordinary speed searches and reads the answer.

    Raises LookupError if the answer is not where the question says.
    """
    section = search.find(question.place)
    before, answer, after = section.partition(question.answer)
    if not answer:
        raise LookupError(f"{question.place} lacks {question.answer!r}: see reader_questions.py")
    is_in_a_table = before.rpartition("\n")[2].startswith("|")
    rest = after.partition("\n" if is_in_a_table else "\n\n")[0]
    word_count = len(f"{before}{answer}{rest}".split())
    is_printed = search.find(question.asked).startswith(section)
    return (1 if is_printed else 2) * HOP_SECONDS + word_count * 60 / WORDS_PER_MINUTE


def render() -> str:
    """The whole page."""
    search = finder()
    parts = (
        _table("An operator", OPERATOR, search),
        _table("An analyst", ANALYST, search),
        _table("A contributor", CONTRIBUTOR, search),
    )
    return "\n".join([_INTRODUCTION, *parts])


def _table(title: str, questions: Sequence[Question], search: Finder) -> str:
    rows = [
        f"| {one.asked} | [{_page(one)}]({_path(one)})"
        f" | {_rounded_up(seconds_to_answer(search, one))} |\n"
        for one in questions
    ]
    head = "| question | answer | seconds |\n| --- | --- | ---: |\n"
    return f"## {title}\n\n{head}{''.join(rows)}"


def _page(question: Question) -> str:
    return question.place.partition("#")[0].removesuffix(".md")


def _path(question: Question) -> str:
    up = "../../" if question.place.startswith(_CONTRIBUTING.name) else "../"
    return f"{up}{question.place}"


def _rounded_up(seconds: float) -> int:
    """In tens: a page may gain a word without another figure here."""
    return -(-round(seconds) // 10) * 10

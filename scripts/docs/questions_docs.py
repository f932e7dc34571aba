"""Renders contributing/questions.md: what readers ask, and the seconds to each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.docs.reader_questions import ANALYST, CONTRIBUTOR, OPERATOR, Question
from strandline.broker.commands import docs_command

# A search, and the choice of a line of its list, take this long each.
HOP_SECONDS = 10
WORDS_PER_MINUTE = 250
# A reader who has found nothing by then asks somebody else.
SECONDS_MAX = 90

_CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"

_INTRODUCTION = f"""\
# Seconds to an answer

<!-- Made by `make docs`. Do not edit. -->

For contributors who write pages. The tables have the questions of an operator, an analyst and a new
contributor, with the words that each gives to `strandline docs`. (Contributors search
CONTRIBUTING.md too.) The seconds are computed, not measured with people: {HOP_SECONDS} for the
search, {HOP_SECONDS} more if it lists several sections, and the words before the answer at
{WORDS_PER_MINUTE} a minute; the sum is rounded up to ten. `tests/test_questions.py` fails if an
answer takes more than {SECONDS_MAX}.
"""


def searched_pages() -> dict[str, str]:
    """Returns the text of each page that a reader of a checkout searches."""
    return docs_command.pages() | {_CONTRIBUTING.name: _CONTRIBUTING.read_text()}


def seconds_to_answer(texts: Mapping[str, str], question: Question) -> float:
    """Returns the time for which a reader of ordinary speed searches and reads.

    Raises LookupError if the answer is not where the question says.
    """
    section = docs_command.find(texts, question.place)
    is_found_at_once = docs_command.find(texts, question.words) == section
    before, answer, _ = section.partition(question.answer)
    if not answer:
        raise LookupError(f"{question.place} lacks {question.answer!r}: see reader_questions.py")
    hops = 1 if is_found_at_once else 2
    return hops * HOP_SECONDS + len(before.split()) * 60 / WORDS_PER_MINUTE


def render() -> str:
    """The whole page."""
    texts = searched_pages()
    parts = (
        _table("An operator", OPERATOR, texts),
        _table("An analyst", ANALYST, texts),
        _table("A contributor", CONTRIBUTOR, texts),
    )
    return "\n".join([_INTRODUCTION, *parts])


def _table(title: str, questions: Sequence[Question], texts: Mapping[str, str]) -> str:
    rows = [
        f"| {one.asked} | {one.words} | [{_page(one)}]({_path(one)})"
        f" | {_rounded_up(seconds_to_answer(texts, one))} |\n"
        for one in questions
    ]
    head = "| question | words | answer | seconds |\n| --- | --- | --- | ---: |\n"
    return f"## {title}\n\n{head}{''.join(rows)}"


def _page(question: Question) -> str:
    return question.place.partition("#")[0].removesuffix(".md")


def _path(question: Question) -> str:
    up = "../../" if question.place.startswith(_CONTRIBUTING.name) else "../"
    return f"{up}{question.place}"


def _rounded_up(seconds: float) -> int:
    """In tens: a page may gain a word without another figure here."""
    return -(-round(seconds) // 10) * 10

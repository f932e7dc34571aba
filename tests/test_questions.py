"""Whoever searches the pages with words of their own finds the answer, by `strandline docs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.docs.questions_docs import (
    PLACES_MAX,
    SECONDS_MAX,
    finder,
    seconds_to_answer,
)
from scripts.docs.reader_questions import QUESTIONS, Question
from strandline.broker.commands.docs_command import Finder

SEARCHES = [
    line.split(" -> ")
    for line in (Path(__file__).parent / "searches.txt").read_text().splitlines()
    if not line.startswith("#")
]
FINDER = finder()
# Some words have no page, or a better one: a change of a page may lose a few searches, not many.
FOUND_SHARE_MIN = 0.85


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_a_question_leads_to_its_answer_soon(question: Question) -> None:
    assert question.place in FINDER.places(question.asked)[:PLACES_MAX]
    assert seconds_to_answer(FINDER, question) <= SECONDS_MAX


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The places of each search."""
    return {words: FINDER.places(words) for words, _ in SEARCHES}


def test_most_searches_name_an_answer_among_their_first_places(found: dict[str, list[str]]) -> None:
    missed = [
        words
        for words, answers in SEARCHES
        if not any(
            _is_in(place, answer)
            for place in found[words][:PLACES_MAX]
            for answer in answers.split()
        )
    ]
    assert len(missed) <= (1 - FOUND_SHARE_MIN) * len(SEARCHES), missed


def test_each_answer_of_a_search_is_a_section(found: dict[str, list[str]]) -> None:
    """Every section has one of these words."""
    places = set().union(*found.values())
    answers = {answer for _, answers in SEARCHES for answer in answers.split()}
    assert [one for one in answers if not any(_is_in(place, one) for place in places)] == []


def _is_in(place: str, answer: str) -> bool:
    page, _, anchor = answer.partition("#")
    return place.startswith(f"{page}.md#{anchor}")


def test_a_list_of_sections_and_the_words_up_to_the_end_of_an_answer_take_time() -> None:
    texts = {
        "how-to/room.md": "# Make room\n\nfree some\nroom at once\n\nor later\n",
        "runbooks/disk.md": "# Disk is full\n\n| do | why |\n| free | old |\n| wait | new |\n",
        "runbooks/disks.md": "# Disk is full too\n\nsee the other\n",
    }
    search = Finder(texts)
    printed = Question("make room", "how-to/room.md#make-room", "free")
    listed = Question("full disk", "runbooks/disk.md#disk-is-full", "free")
    # The page's name and the heading are words before the answer. Of a paragraph all words count,
    # of a table the rows up to the answer's.
    assert seconds_to_answer(search, printed) == pytest.approx(10 + 9 * 60 / 250)
    assert seconds_to_answer(search, listed) == pytest.approx(20 + 15 * 60 / 250)

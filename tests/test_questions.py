"""Whoever searches the pages with a few words finds the answer, by `strandline docs`."""

from __future__ import annotations

import pytest

from scripts.docs.questions_docs import SECONDS_MAX, searched_pages, seconds_to_answer
from scripts.docs.reader_questions import QUESTIONS, Question
from strandline.broker.commands import docs_command

# A reader looks at the first lines of a list.
LINES_MAX = 4


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_the_words_of_a_question_lead_to_its_answer_soon(question: Question) -> None:
    texts = searched_pages()
    section = docs_command.find(texts, question.place)
    assert question.answer in section
    found = docs_command.find(texts, question.words)
    assert found == section or question.place in found.splitlines()[:LINES_MAX]
    assert seconds_to_answer(texts, question) <= SECONDS_MAX


def test_the_words_before_an_answer_and_a_list_of_sections_take_time() -> None:
    texts = {
        "how-to/disk.md": "# Disk full\n\nfree some room\n\n# Disks\n\nanother disk\n",
        "runbooks/disk.md": "# Disk is full\n\n" + 25 * "word " + "answer\n",
    }
    at_once = Question("?", "room", "how-to/disk.md#disk-full", "free")
    of_a_list = Question("?", "disk full", "runbooks/disk.md#disk-is-full", "answer")
    # The page's name and the heading are words before the answer too.
    assert seconds_to_answer(texts, at_once) == pytest.approx(10 + 4 * 60 / 250)
    assert seconds_to_answer(texts, of_a_list) == pytest.approx(20 + 30 * 60 / 250)

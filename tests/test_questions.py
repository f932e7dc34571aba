"""Whoever searches the pages with a few words finds the answer, by `strandline docs`."""

from __future__ import annotations

import pytest

from strandline.broker.commands import docs_command
from tests.support.reader_questions import QUESTIONS, Question

# A reader looks at the first lines of a list.
LINES_MAX = 4


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_the_words_of_a_question_lead_to_its_answer(question: Question) -> None:
    texts = docs_command.pages()
    section = docs_command.find(texts, question.place)
    assert question.answer in section
    found = docs_command.find(texts, question.words)
    assert found == section or question.place in found.splitlines()[:LINES_MAX]

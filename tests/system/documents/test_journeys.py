"""The README and the tutorials can be followed, from the first command of each to its last.

The reader of each begins with an empty folder; a program that makes a Spark session starts a JVM.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_blocks import JOURNEYS, ROOT, is_of_spark, runnable
from tests.support.page_world import traveller

pytestmark = [pytest.mark.slow, pytest.mark.s3]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            # `make demo` asks Spark too.
            marks=[pytest.mark.spark, pytest.mark.heavy] if is_of_spark(page) else [],
        )
        for page in JOURNEYS
    ],
)
def test_a_page_can_be_followed_from_its_first_command_to_its_last(
    page: Path, tmp_path: Path
) -> None:
    with traveller(tmp_path) as shell:
        wrong = shell.follow(runnable(page, "bash", "python"))
    assert not wrong, "\n".join(wrong)

"""`strandline archive usage`: prices as people type them."""

from __future__ import annotations

import pytest

from strandline.broker.commands.archive_usage import price_of
from strandline.broker.tools.client.failures import WrongUse


def test_a_price_is_a_class_and_an_amount() -> None:
    assert price_of("STANDARD=0.023") == ("STANDARD", 0.023)
    assert price_of("FREE=0") == ("FREE", 0.0)


@pytest.mark.parametrize("text", ["", "0.023", "=1", "STANDARD=", "STANDARD=-1", "A=inf", "A=nan"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="is no price"):
        price_of(text)

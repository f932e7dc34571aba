"""Prices and amounts of money, written in one way by all commands: `WHAT=USD`, `1.23 USD`."""

from __future__ import annotations

from strandline.broker.tools.client.failures import WrongUse

PRICE_FORM = "WHAT=USD"


def price_of(text: str) -> tuple[str, float]:
    """Parses `STANDARD=0.023`. Raises WrongUse."""
    name, _, amount = text.partition("=")
    try:
        price = float(amount)
    except ValueError:
        price = -1.0
    if not name or not 0 <= price < float("inf"):
        raise WrongUse(f"{text!r} is no price", remedy="write WHAT=USD, as in STANDARD=0.023")
    return name, price


def digits(amount: float) -> str:
    """`1,234.50`, `0.0023`: small amounts with more digits."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def usd(amount: float) -> str:
    """`1,234.50 USD`, as `digits`."""
    return f"{digits(amount)} USD"

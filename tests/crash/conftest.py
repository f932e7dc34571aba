"""The fixtures of `tests/tiers`: brokers with a remote tier in a bucket of their own."""

from tests.tiers.conftest import archive, make_broker

__all__ = ["archive", "make_broker"]

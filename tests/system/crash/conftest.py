"""The fixtures of `tests/system/tiers`: brokers with a remote tier in a bucket of their own."""

from tests.system.tiers.conftest import archive, broker, make_broker

__all__ = ["archive", "broker", "make_broker"]

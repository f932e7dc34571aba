"""Kafka's controllers, and brokers of both, for the tests of mixed clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.mixed.cluster import Mixed, running_cluster


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with running_cluster(tmp_path_factory.mktemp("mixed")) as running:
        yield running

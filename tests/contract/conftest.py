"""One fixture: every object store there is, with an empty root."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from tests.conftest import S3Bucket, StartServer, make_bucket
from tests.contract.stores import (
    ENDPOINT,
    ENDPOINT_VARIABLE,
    FILE,
    MEMORY,
    MINISTACK,
    MOTO,
    StoreUnderTest,
    moto_command,
    store_kinds,
)
from tests.support.heavy import HEAVY
from tests.support.memory_store import MemoryStore
from tests.support.ministack import ServerProcess
from tests.support.ports import ReservedPort
from tests.support.s3_servers import SERVERS

# Of the two servers that Python has, one is enough for each run.
MARKS: Final[Mapping[str, Sequence[pytest.MarkDecorator]]] = {
    MEMORY: [],
    FILE: [],
    MOTO: [pytest.mark.s3, HEAVY],
}


@pytest.fixture(scope="session")
def moto_server(
    tmp_path_factory: pytest.TempPathFactory, s3_credentials: None
) -> Iterator[ServerProcess]:
    """moto's S3 as a process of its own."""
    port = ReservedPort()
    log_path = tmp_path_factory.mktemp("moto") / "moto.log"
    with ServerProcess(
        moto_command(port.number), port=port, log_path=log_path, environment={}
    ) as server:
        yield server


@pytest.fixture(
    params=[pytest.param(kind, marks=MARKS.get(kind, [pytest.mark.s3])) for kind in store_kinds()]
)
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    """A store of each kind."""
    kind = request.param
    if kind == MEMORY:
        memory = MemoryStore()
        yield StoreUnderTest(kind=kind, store=memory, reopen=lambda: memory)
        return
    if kind == FILE:
        url = (tmp_path / "archive").as_uri()
        yield StoreUnderTest(kind=kind, store=open_store(url), reopen=lambda: open_store(url))
        return
    bucket = make_bucket(_endpoint_url(kind, request))
    opened: list[ObjectStore] = []

    def open_again() -> ObjectStore:
        opened.append(_open(bucket))
        return opened[-1]

    yield StoreUnderTest(kind=kind, store=open_again(), reopen=open_again)
    for store in opened:
        store.close()


def _endpoint_url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == ENDPOINT:
        return os.environ[ENDPOINT_VARIABLE]
    if kind in SERVERS:
        start_server: StartServer = request.getfixturevalue("start_server")
        return start_server(kind).endpoint_url
    name = {MINISTACK: "ministack", MOTO: "moto_server"}[kind]
    server: ServerProcess = request.getfixturevalue(name)
    return server.endpoint_url


def _open(bucket: S3Bucket) -> ObjectStore:
    return open_store(bucket.url, endpoint_url=bucket.endpoint_url)


@pytest.fixture
def store(under_test: StoreUnderTest) -> ObjectStore:
    """The store itself, for tests that need nothing else."""
    return under_test.store

"""Fixtures of the whole suite: a real S3 server, a bucket of one's own, and a way to break it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import logging
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import botocore.session
import pytest
from botocore.loaders import create_loader
from hypothesis import HealthCheck, settings

from tests.support.fault_proxy import FaultProxy
from tests.support.ministack import ServerProcess
from tests.support.ministack import ministack as ministack_server
from tests.support.s3_servers import s3_server

# How long an example takes says something about the machine only.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

# Starts the S3 server of that name, or gives the one that runs.
StartServer = Callable[[str], ServerProcess]

# Emulators want credentials and do not check them; without these, boto3 would look for real ones.
TEST_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    # Some servers want eight characters.
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    # Spark's JVM lives for minutes: what its second compiler makes faster costs more than it gains.
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Bucket:
    """An empty bucket of one test: `open_store(bucket.url, endpoint_url=bucket.endpoint_url)`."""

    name: str
    endpoint_url: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/archive"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `--dist loadfile` the long files come first."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.schedule import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What tests are made of stays until the end, and no garbage collection looks through it.

    While they are collected that takes a quarter of the time. Later each full one would take a
    quarter of a second, for half a million objects that live on.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# What was frozen is collected by the interpreter's end: libraries print what they find alive then.
# Not earlier: pytest collects twice before, which would take seconds in each worker.
atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def s3_described_once() -> Iterator[None]:
    """The description of S3 is read once in a worker: boto3 reads it for each session anew.

    That is most of what the client of a bucket costs, and 34,000 objects that it keeps.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(create_loader))
        yield


@pytest.fixture(scope="session", autouse=True)
def s3_credentials() -> Iterator[None]:
    """Credentials for emulators, in this process and in those that tests start; Spark's options."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TEST_ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restores log levels and handlers: a command that a test runs in this process sets them."""
    root, ours = logging.getLogger(), logging.getLogger("strandline")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture(scope="session")
def ministack(
    tmp_path_factory: pytest.TempPathFactory, s3_credentials: None
) -> Iterator[ServerProcess]:
    """A MiniStack process in memory mode, for the whole run."""
    log_path = tmp_path_factory.mktemp("ministack") / "ministack.log"
    with ministack_server(log_path) as server:
        yield server


@pytest.fixture(scope="session")
def start_server(
    tmp_path_factory: pytest.TempPathFactory, s3_credentials: None
) -> Iterator[StartServer]:
    """`start_server("minio")`: one of `s3_servers.py`, for the whole run."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def start(name: str) -> ServerProcess:
            return running.enter_context(s3_server(name, tmp_path_factory.mktemp(name)))

        yield start


@functools.cache
def _client(endpoint_url: str) -> S3Client:
    import boto3.session

    return boto3.session.Session().client("s3", endpoint_url=endpoint_url, region_name="us-east-1")


def make_bucket(endpoint_url: str) -> S3Bucket:
    """Creates a bucket that nobody else has."""
    name = f"test-{uuid.uuid4().hex[:20]}"
    _client(endpoint_url).create_bucket(Bucket=name)
    return S3Bucket(name=name, endpoint_url=endpoint_url)


@pytest.fixture
def s3_bucket(ministack: ServerProcess) -> S3Bucket:
    """An empty bucket on MiniStack."""
    return make_bucket(ministack.endpoint_url)


@pytest.fixture
def fault_proxy(ministack: ServerProcess) -> Iterator[FaultProxy]:
    """A proxy in front of MiniStack; use its `endpoint_url` with the name of a bucket."""
    with FaultProxy(ministack.port) as proxy:
        yield proxy

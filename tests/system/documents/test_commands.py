"""The commands and examples of the pages are run, in a world that has what they name.

A command that several pages have is run once. A block that starts a broker, or restores one, gets a
copy of the archive, whose owner is gone; so does a block that changes something, or asks a replica:
there runs a broker with a group. Examples of Spark are run by tests/spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.broker.config.loading import load_config
from strandline.broker.config.sections import LogDirsConfig
from tests.conftest import S3Bucket, make_bucket
from tests.support.heavy import all_but
from tests.support.ministack import ServerProcess
from tests.support.page_blocks import (
    EXAMPLES,
    JOURNEYS,
    ROOT,
    Block,
    blocks_of,
    is_of_spark,
    pages,
    runnable,
)
from tests.support.page_world import (
    ARCHIVE,
    FOLDER,
    METRICS,
    PageWorld,
    Shell,
    commands,
    commit,
    copy_archive,
    page_world,
    wanted_environment,
)
from tests.support.ports import ReservedPort

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def with_blocks(*languages: str) -> list[Path]:
    left_out = (*JOURNEYS, EXAMPLES)
    return [page for page in pages() if page not in left_out and runnable(page, *languages)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def archive(ministack: ServerProcess) -> S3Bucket:
    return make_bucket(ministack.endpoint_url)


@pytest.fixture(scope="module")
def world(archive: S3Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageWorld]:
    with page_world(tmp_path_factory.mktemp("world"), archive) as running:
        yield running


REPLICA = "replica.example.org:9092"
RUN_REPLICA = (
    f"strandline serve --read-only --set log.dirs={FOLDER} --set strandline.remote.url={ARCHIVE}"
)
AS_OWNER = f"--config server.properties --set log.dirs={FOLDER}"
RUN_OWNER = f"strandline restore {AS_OWNER}\nstrandline serve {AS_OWNER}"
# What other pages would no longer find as they expect it.
CHANGES = re.compile(r"strandline topic alter|--execute\b|delete_records")


def broker_before(block: Block) -> str:
    """The commands that start the broker which the block asks; empty if that is the world's."""
    if REPLICA in block.text:
        return RUN_REPLICA
    return RUN_OWNER if CHANGES.search(block.text) else ""


def is_of_a_broker(block: Block) -> bool:
    starts = any(words in block.text for words in ("strandline serve", "strandline restore"))
    return starts or broker_before(block) != ""


def run_with_own_broker(archive: S3Bucket, block: Block, folder: Path) -> list[str]:
    """In a shell with empty folders; a first broker gets an empty bucket, others the archive."""
    # The folder of the broker before, which the reader moves.
    (folder / "data").mkdir()
    before = broker_before(block)
    known = before or any(words in block.text for words in ("restore", "--read-only"))
    bucket = make_bucket(archive.endpoint_url)
    if known:
        copy_archive(archive, bucket)
    metrics, port = ReservedPort(), ReservedPort()
    values = {
        "1200": "12",
        ARCHIVE: bucket.url,
        FOLDER: str(folder / "data"),
        METRICS: f"http://127.0.0.1:{metrics.number}",
        "/var/lib/replica": str(folder / "replica"),
        "/disk2/strandline": str(folder / "disk2"),
        "/var/tmp/rehearsal": str(folder / "rehearsal"),
    }
    bootstrap = f"127.0.0.1:{port.number}"
    values |= dict.fromkeys((REPLICA, "kafka.example.org:9092", "127.0.0.1:9092"), bootstrap)
    shell = Shell(folder, values, wanted_environment(bucket.endpoint_url, bootstrap, folder))
    # As the file of run.md it names no log.dirs: the command has to.
    properties = "remote.log.storage.system.enable=true\nstrandline.remote.url="
    (folder / "server.properties").write_text(f"{properties}{bucket.url}\n")
    try:
        wrong = []
        if before:
            wrong += shell.run(replace(block, language="bash", text=before, output=""))
            commit(bootstrap)
        wrong += shell.run(block)
    finally:
        shell.stop_brokers()
    elsewhere = folder / LogDirsConfig().only_dir
    return [*wrong, f"writes to {elsewhere}"] if elsewhere.exists() else wrong


TABLES = ROOT / "docs" / "how-to" / "tables.md"
# The commands of runbooks are mostly those of the other pages, in other words; those of tables load
# pyiceberg fifty times, and have tests of their own.
WITH_COMMANDS = with_blocks("bash")
OTHERS = (TABLES, ROOT / "docs/explanation/cost.md", ROOT / "docs/how-to/tiering-off.md")
OF_USERS = [page for page in WITH_COMMANDS if page.parent.name != "runbooks" and page not in OTHERS]


@pytest.mark.parametrize("page", all_but(OF_USERS, WITH_COMMANDS), ids=name)
def test_commands_of_a_page_succeed(
    world: PageWorld, archive: S3Bucket, page: Path, tmp_path: Path
) -> None:
    wrong = []
    for number, block in enumerate(runnable(page, "bash")):
        if is_of_a_broker(block):
            folder = tmp_path / str(number)
            folder.mkdir()
            found = run_with_own_broker(archive, block, folder)
        else:
            found = world.shell.run(block, once=True)
        wrong += [f"{block.place}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


# Examples of the command line that do not run here, and why.
EXAMPLES_LEFT_OUT = (
    r"strandline acl\b",  # the broker of the pages has no authorizer
    r"strandline (serve|restore)\b",  # pages start and restore brokers with the same words
    r"--(delete|apply|execute)\b|(topic|group) delete|topic (create|alter)",  # they change things
    r"strandline produce",  # pages read these topics
    r"cluster remove",  # no broker of the pages is lost
    r"table (sync|maintain|check)",  # the page on tables runs them, with a catalog
    r"example\.(com|org)|/disk1/|orders\.csv|logo\.png|bill$|jq ",  # what is the reader's own
    r"Ctrl-|--since|--max-messages",  # until the reader ends them, or somebody writes more
)
EXAMPLES_RUN_MIN = 30


def test_examples_of_the_command_line_that_change_nothing_succeed(world: PageWorld) -> None:
    archive = world.shell.values[ARCHIVE]
    named = r"s3://my-bucket/(prefix|my-cluster)|file:///srv/archive|s3://archive (?=--endpoint)"
    given = " --endpoint-url http://127.0.0.1:4566"
    count, wrong = 0, []
    for block in blocks_of(EXAMPLES):
        if block.language != "bash":
            continue
        kept = [
            re.sub(named, f"{archive} ", command).replace(given, "")
            for command in commands(block.text)
            if not any(re.search(left_out, command) for left_out in EXAMPLES_LEFT_OUT)
        ]
        count += len(kept)
        wrong += world.shell.run(replace(block, text="\n".join(kept), output=""), once=True)
    assert not wrong, "\n".join(wrong)
    assert count >= EXAMPLES_RUN_MIN


@pytest.mark.parametrize(
    "page",
    [page for page in with_blocks("python") if not is_of_spark(page)],
    ids=name,
)
def test_python_of_a_page_runs(
    world: PageWorld,
    archive: S3Bucket,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(variable, world.shell.environment[variable])
    for block in runnable(page, "bash"):
        if not is_of_a_broker(block):
            assert world.shell.run(block, once=True) == []
    names: dict[str, object] = {}
    for block in runnable(page, "python"):
        if is_of_a_broker(block):
            assert run_with_own_broker(archive, block, tmp_path) == []
            continue
        exec(compile(world.shell.replaced(block.text), block.place, "exec"), names)


@pytest.mark.parametrize("page", with_blocks("properties"), ids=name)
def test_properties_of_a_page_are_taken(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    for block in runnable(page, "properties"):
        file.write_text(f"log.dirs={tmp_path}\n{block.text}")
        load_config(file)


@pytest.mark.parametrize("page", with_blocks("json"), ids=name)
def test_json_of_a_page_is_json(page: Path) -> None:
    for block in runnable(page, "json"):
        json.loads(block.text)

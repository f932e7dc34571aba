"""Processes that share a folder, killed or stopped at any step: what one does holds up no other.

A process of its own does one thing to the store and stops itself (SIGSTOP) before or after a named
call. The test waits until the kernel says that it has stopped.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.storage.errors import PreconditionFailed, TierUnavailable
from strandline.storage.remote.object_store import local_directory
from strandline.storage.remote.object_store.interface import IfAbsent, IfMatches
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

pytestmark = pytest.mark.slow

# What a process does, and the calls around which it may be stopped or killed.
CREATE = "store.put('a/new', b'theirs', condition=IfAbsent())"
SWAP = "store.put('a/old', b'theirs', condition=IfMatches(store.head('a/old').etag))"
REPLACE = "store.put('a/old', b'theirs')"
DELETE = "store.delete(['a/old'])"
STOPS = [
    (CREATE, "before", "link"),
    (CREATE, "after", "link"),
    (CREATE, "before", "remove"),
    (SWAP, "before", "rename"),
    (SWAP, "after", "rename"),
    (REPLACE, "before", "rename"),
    (DELETE, "before", "remove"),
    (DELETE, "after", "remove"),
]
# Whether the object is locked meanwhile.
IS_HELD = [False, True, False, True, True, True, True, False]

STOPPING = """
import os, signal, sys
from pathlib import Path
from strandline.storage import files
from strandline.storage.remote.object_store.interface import IfAbsent, IfMatches
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

root, what, when, name = sys.argv[1:]
store = LocalDirectoryStore(Path(root))
original = getattr(files, name)

def stopping(*args):
    if when == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    original(*args)
    if when == "after":
        os.kill(os.getpid(), signal.SIGSTOP)

setattr(files, name, stopping)
exec(what)
"""

COUNTING = """
import sys
from pathlib import Path
from strandline.storage.errors import PreconditionFailed
from strandline.storage.remote.object_store.interface import IfAbsent, IfMatches
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

store = LocalDirectoryStore(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    while True:
        found = store.get_object("counter")
        try:
            count = b"%d" % (int(found.body) + 1)
            store.put("counter", count, condition=IfMatches(found.info.etag))
            break
        except PreconditionFailed:
            continue
    print("counted", flush=True)
    try:
        store.put(f"names/{number}", sys.argv[3].encode(), condition=IfAbsent())
        print("named", number, flush=True)
    except PreconditionFailed:
        pass
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_until_stopped(started: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(started.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status


@pytest.fixture
def store(tmp_path: Path) -> LocalDirectoryStore:
    store = LocalDirectoryStore(tmp_path)
    store.put("a/old", b"old")
    store.put("a/other", b"old")
    return store


def check_others(store: LocalDirectoryStore) -> None:
    """Everything that does not concern the object of the other process works."""
    store.put("a/b", b"1", condition=IfAbsent())
    with pytest.raises(PreconditionFailed):
        store.put("a/b", b"2", condition=IfAbsent())
    etag = store.put("a/b", b"3").etag
    store.put("a/b", b"4", condition=IfMatches(etag))
    with pytest.raises(PreconditionFailed):
        store.put("a/b", b"5", condition=IfMatches(etag))
    store.put("a/other", b"6")
    assert store.get("a/b") == b"4"
    assert {"a/b", "a/other"} <= {info.key for info in store.list("")}
    store.delete(["a/b", "a/other"])


@pytest.mark.parametrize(
    ("what", "when", "call", "is_held"),
    [(*stop, is_held) for stop, is_held in zip(STOPS, IS_HELD, strict=True)],
)
def test_a_stopped_process_holds_up_nothing_but_the_object_that_it_replaces(
    tmp_path: Path,
    store: LocalDirectoryStore,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    when: str,
    call: str,
    is_held: bool,
) -> None:
    key = "a/new" if what == CREATE else "a/old"
    monkeypatch.setattr(local_directory, "LOCK_WAIT_S_MAX", 0.2)
    with process(STOPPING, str(tmp_path), what, when, call) as stopped:
        wait_until_stopped(stopped)
        check_others(store)
        if is_held:
            # Its own object is away for a time, like one of a slow store.
            with pytest.raises(TierUnavailable, match="is it stopped"):
                store.put(key, b"ours")
            with pytest.raises(TierUnavailable, match="is it stopped"):
                store.delete([key])
        else:
            store.put(key, b"ours")
        stopped.send_signal(signal.SIGCONT)
        # Its precondition does not hold any more, or it goes on as if nothing had happened.
        assert stopped.wait(60) == (1 if (when, call) == ("before", "link") else 0)
    if what == DELETE and is_held:
        store.put(key, b"ours", condition=IfAbsent())
    assert store.get(key) == (b"theirs" if is_held and what != DELETE else b"ours")
    assert store.put(key, b"last", condition=IfMatches(store.head(key).etag))
    assert list((tmp_path / "%tmp").iterdir()) == []


@pytest.mark.parametrize(("what", "when", "call"), STOPS)
def test_a_killed_process_holds_up_nothing_at_all(
    tmp_path: Path, store: LocalDirectoryStore, what: str, when: str, call: str
) -> None:
    with process(STOPPING, str(tmp_path), what, when, call) as stopped:
        wait_until_stopped(stopped)
        stopped.kill()
        assert stopped.wait(60) == -signal.SIGKILL
    check_others(store)
    key = "a/new" if what == CREATE else "a/old"
    found = {info.key: store.get(info.key) for info in store.list("")}
    assert found.get(key) in ((None, b"theirs") if what == CREATE else (None, b"old", b"theirs"))
    store.put(key, b"ours", condition=IfMatches(store.head(key).etag) if key in found else None)
    assert store.get(key) == b"ours"
    store.abort_uploads("", older_than_ms=0)
    assert list((tmp_path / "%tmp").iterdir()) == []
    assert store.get(key) == b"ours", "its other name went, not the object"


def test_processes_that_race_and_are_killed_and_stopped_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    """A counter swapped by five processes, and names that they create: one winner each."""
    rounds, seed = 60, random.randrange(2**32)
    print("seed", seed)
    dies_at = random.Random(seed).randrange(1, rounds)
    store = LocalDirectoryStore(tmp_path)
    store.put("counter", b"0")

    def follow(number: int) -> list[str]:
        """Two are stopped and continued after each line that they print, one is killed."""
        told: list[str] = []
        with process(COUNTING, str(tmp_path), str(rounds), f"racer-{number}") as racer:
            assert racer.stdout is not None
            for line in racer.stdout:
                told.append(line)
                if number == 0 and len(told) == dies_at:
                    racer.kill()
                if number in (1, 2):
                    racer.send_signal(signal.SIGSTOP)
                    racer.send_signal(signal.SIGCONT)
            assert racer.wait(60) == (-signal.SIGKILL if number == 0 else 0)
        return told

    with ThreadPoolExecutor(5) as executor:
        lines = list(executor.map(follow, range(5)))
    counted_count = sum(line == "counted\n" for told in lines for line in told)
    # The killed one may not have told its last.
    assert int(store.get("counter")) - counted_count in (0, 1)
    winners: dict[str, int] = {}
    for number, told in enumerate(lines):
        for line in told:
            if line.startswith("named"):
                assert winners.setdefault(line, number) == number, line
                assert store.get(f"names/{line.split()[1]}") == f"racer-{number}".encode()
    assert len(list(store.list("names/"))) == rounds

"""The reader inside the JVM as a jar: compiled from this package's sources where Spark is.

    spark_lake/jvm/src/*.scala --scalac that Spark brings--> <cache>/strandline-lake-<hash>.jar

The hash is of the sources and of Spark's version, so that a jar is compiled once for both (some ten
seconds of CPU) and never taken for another. A jar in the repository would be built by somebody for
some Spark; nothing else of this package needs a build.

Steps of making one, which another process or a kill may interrupt at any point:

    1  lock <cache>/strandline-lake.lock      whoever waits finds the jar afterwards
    2  compile into a folder of its own       which the next compiler removes
    3  sync it, rename it to its name         from here on it is there, whole
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from strandline.storage import files
from strandline.storage.clock import SystemClock
from strandline.storage.errors import DiskError, StrandlineError

# Where jars are kept; else the user's cache folder, else one in the folder for temporary files.
CACHE_VARIABLE = "STRANDLINE_CACHE_DIR"
# A loaded machine takes a minute.
COMPILE_S_MAX = 300
LOOK_S = 0.2
_SOURCES = "jvm/src"
# One processor and little memory are enough for two thousand lines.
_JAVA_OPTIONS = ("-Xmx512m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class NoJvmReader(StrandlineError):
    """The reader inside the JVM cannot be had here; the message says why."""


def sources() -> dict[str, bytes]:
    """The Scala files by their names. Raises NoJvmReader if this installation lacks them."""
    try:
        folder = resources.files("strandline.spark_lake").joinpath(_SOURCES)
        found = {one.name: one.read_bytes() for one in folder.iterdir()}
    except OSError as error:
        raise NoJvmReader(f"this installation has no Scala sources: {error}") from error
    return {name: content for name, content in sorted(found.items()) if name.endswith(".scala")}


def jar_of(spark_version: str, spark_home: Path) -> Path:
    """The jar for this Spark, compiled if it is not there yet. Raises NoJvmReader."""
    files_by_name = sources()
    digest = hashlib.sha256(spark_version.encode())
    for name, content in files_by_name.items():
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    name = f"strandline-lake-{digest.hexdigest()[:20]}.jar"
    folder = _cache_folder()
    jar = folder / name
    if jar.exists():
        return jar
    with _locked(folder / "strandline-lake.lock"):
        if not jar.exists():
            _compile(files_by_name, jar, spark_home)
    return jar


# --- where -------------------------------------------------------------------------------------


def _cache_folder() -> Path:
    """A folder that nobody else may write to: what lies in it is run. Raises NoJvmReader."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return _made(Path(given))
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        return _made(Path(home) / "strandline")
    except (NoJvmReader, RuntimeError):  # the latter of a user without a home
        return _made(Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise NoJvmReader(f"no folder for the jar: {error}; set {CACHE_VARIABLE}") from error
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoJvmReader(
            f"the folder {folder} can be written to by others, and the jar in it is run: set"
            f" {CACHE_VARIABLE} to one of your own"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NoJvmReader(f"the folder {folder} cannot be written to: set {CACHE_VARIABLE}")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + COMPILE_S_MAX
    pause = threading.Event()
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic_s() >= deadline_s:
                    raise NoJvmReader(
                        f"another process holds {path} for more than {COMPILE_S_MAX} s"
                    ) from None
                pause.wait(LOOK_S)
        yield


# --- how ---------------------------------------------------------------------------------------


def _compile(files_by_name: Mapping[str, bytes], jar: Path, spark_home: Path) -> None:
    jars = spark_home / "jars"
    if not list(jars.glob("scala-compiler*.jar")):
        raise NoJvmReader(f"there is no Scala compiler in {jars}")
    java = _java()
    work = jar.parent / "compiling"
    # Left by a compiler that was killed: its lock is ours now.
    files.remove_tree(work)
    try:
        work.mkdir(mode=0o700)
        for name, content in files_by_name.items():
            (work / name).write_bytes(content)
        made = work / jar.name
        command = [
            *(java, *_JAVA_OPTIONS, "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"),
            *("-nowarn", "-d", str(made)),
            *(str(work / name) for name in files_by_name),
        ]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMPILE_S_MAX,
            check=False,
        )
        if done.returncode or not made.exists():
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise NoJvmReader(f"the Scala compiler of {jars} says: {said}")
        files.sync_file(made)
        files.rename(made, jar)
    except (OSError, DiskError, subprocess.SubprocessError) as error:
        raise NoJvmReader(f"the jar could not be compiled: {error}") from error
    finally:
        files.remove_tree(work)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found:
        raise NoJvmReader("there is no java to compile with: set JAVA_HOME")
    return found

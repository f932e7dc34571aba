"""Java programs, compiled and run beside the libraries of a pom.xml: `scripts/java-libraries`."""

from __future__ import annotations

import subprocess
from pathlib import Path

# A small JVM that starts quickly.
JAVA = ("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
COMPILE_SECONDS_MAX = 300


def compile_java(libraries: Path, classes: Path, source: Path) -> None:
    """Compiles with the Eclipse compiler of the libraries; raises AssertionError if it refuses."""
    jars = sorted(libraries.glob("*.jar"))
    compiler = [path for path in jars if path.name.startswith("ecj-")]
    class_path = ":".join(map(str, jars))
    command = ["java", "-cp", str(compiler[0]), "org.eclipse.jdt.internal.compiler.batch.Main"]
    command += ["-17", "-nowarn", "-proc:none", "-cp", class_path, "-d", str(classes)]
    result = subprocess.run(
        [*command, str(source)],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def java(class_path: list[Path], main_class: str, *arguments: str) -> list[str]:
    """The command line of a program that tells of warnings only."""
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dlog4j2.level=warn"]
    return [
        *JAVA,
        "-Xmx256m",
        *quiet,
        "-cp",
        ":".join(map(str, class_path)),
        main_class,
        *arguments,
    ]

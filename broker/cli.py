"""The command line: `serve` and `restore`.

The commands for buckets and log folders are in `offline_commands.py`, those for any cluster in
`broker/tools`. Errors are printed as one line on standard error. The exit code is 2 for a wrong
command line, and 1 for a failure or a name that does not exist.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from strandline import __version__
from strandline.broker.commands.error_hints import remedy_for
from strandline.broker.commands.sigterm import ended_by_sigterm
from strandline.broker.commands.store_silence import telling_of_silence
from strandline.broker.server.standard_streams import drop_unwritable_output, prepare_streams
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.commands.options import (
    USAGE_ERROR,
    CommandParser,
    Commands,
    add_bucket_access,
    add_command,
    add_repeated,
    archive_url,
)
from strandline.storage.clock import SystemClock
from strandline.storage.crash_points import check_environment
from strandline.storage.errors import InvalidConfig, StrandlineError, UnknownTopic

if TYPE_CHECKING:
    from strandline.broker.config.broker_config import BrokerConfig

FAILURE = 1
# A shell's exit code for a process that SIGINT ended.
INTERRUPTED = 130

_FIRST_STEPS = """
first steps:
  strandline serve --archive ./archive                 # a broker at 127.0.0.1:9092; then, beside it
  strandline topic create orders --partitions 3
  echo hello | strandline produce orders
  strandline consume orders --from start --until-end

Each command says with --help what it takes, with examples. Defaults stand in [brackets].
`strandline docs` prints the documentation; messages name its pages, and how to print them.
"""

_SERVE_EXAMPLES = """
examples:
  a broker with local storage only
    strandline serve --set log.dirs=/var/lib/strandline

  with an archive that shows itself in seconds; s3://bucket/prefix works in the same manner
    strandline serve --archive ./archive

  with history in S3 (credentials come from the usual AWS chain)
    strandline serve --set log.dirs=/var/lib/strandline \\
      --set remote.log.storage.system.enable=true \\
      --set strandline.remote.url=s3://my-bucket/my-cluster

  a read-only replica of that archive, with folders of its own
    strandline serve --read-only --set log.dirs=/var/lib/strandline-replica \\
      --set strandline.remote.url=s3://my-bucket/my-cluster

  from a Kafka properties file, one property changed
    strandline serve --config server.properties --set listeners=PLAINTEXT://:9093

Then create a topic with remote.storage.enable=true to have its closed segments archived.
All properties: strandline docs reference/configuration
"""

_RESTORE_EXAMPLES = """
examples:
  the broker's own configuration, on a new machine
    strandline restore --config server.properties

  or by hand
    strandline restore --remote s3://my-bucket/my-cluster --set log.dirs=/var/lib/strandline

The log folders must be empty. The bucket is only read. If it is interrupted, run it again.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code of the process."""
    # Before the other imports: libffi keeps its file open, and would take a closed stream's number.
    prepare_streams()
    given = sys.argv[1:] if arguments is None else arguments
    # Ctrl-C may come while a command is loaded.
    options = argparse.Namespace(run=None)
    try:
        options = make_parser(given[0] if given else "").parse_args(given)
        code = _run(options, given[0])
        # Here, and not at the end of the process, where nobody could handle a closed pipe.
        sys.stdout.flush()
    except (InvalidConfig, WrongUse) as error:
        print(f"strandline: {error}", file=sys.stderr)
        return FAILURE if isinstance(error, UnknownTopic) else USAGE_ERROR
    except StrandlineError as error:
        print(f"strandline: {error}{remedy_for(error, command=given[0])}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt as error:
        _tell_interrupted(options)
        return getattr(error, "exit_code", INTERRUPTED)
    except BrokenPipeError:
        # The reader has ended: `strandline archive ls | head`.
        drop_unwritable_output()
        return 0
    except OSError as error:
        remedy = remedy_for(error, command=given[0])
        if not remedy:
            raise
        drop_unwritable_output()
        print(f"strandline: {error}{remedy}", file=sys.stderr)
        return FAILURE
    return code


def _run(options: argparse.Namespace, command: str) -> int:
    run: Callable[[argparse.Namespace], int] = options.run
    with ExitStack() as stack:
        if command in ("restore", "archive", "lake", "table"):
            stack.enter_context(telling_of_silence())
        if command in ("restore", "archive", "table"):
            stack.enter_context(ended_by_sigterm(partial(_tell_interrupted, options)))
        return run(options)


def _tell_interrupted(options: argparse.Namespace) -> None:
    state, hint = getattr(options, "state", None), ""
    if options.run is _restore:
        hint = "; run the same command again before a broker starts on these folders"
    elif state is not None and state.exists():
        hint = f"; what was done is in {state}: the same command continues from there"
    print(f"\nstrandline: interrupted{hint}", file=sys.stderr)


def make_parser(command: str) -> CommandParser:
    """Makes a parser for `command` alone if it is one of COMMANDS, otherwise for all commands.

    To make all parsers takes longer than a broker takes to open its log folders.
    """
    parser = CommandParser(
        prog="strandline",
        description="A Kafka-compatible broker with two storage tiers: local disk and S3.",
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"strandline {__version__}")
    commands = parser.add_commands(title="commands", metavar="COMMAND")
    if command in COMMANDS:
        COMMANDS[command](commands)
        return parser
    from strandline.broker.commands.remove_command import add_remove
    from strandline.broker.tools.commands.arguments import add_commands

    for add in COMMANDS.values():
        add(commands)
    add_commands(commands, add_remove)
    return parser


def _add_serve(commands: Commands) -> None:
    serve = add_command(
        commands,
        "serve",
        "run a broker",
        "Runs a broker until SIGTERM, SIGINT or SIGHUP. Prints a line when ready.",
        _SERVE_EXAMPLES,
        _serve,
    )
    serve.add_argument(
        "--archive",
        type=archive_url,
        metavar="URL",
        help="archive to s3://bucket/prefix, file:///folder or ./folder, and look every second"
        " whether a segment may close; stands for"
        f" {' '.join(f'--set {one}' for one in _with_archive('URL'))}",
    )
    serve.add_argument(
        "--read-only",
        action="store_true",
        help="serve another broker's archive and follow it as it grows; nothing is written there",
    )
    serve.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="run a cluster of N brokers on this machine, at the next ports;"
        " stands for --set strandline.brokers=N",
    )
    _add_configuration(serve, log_level="INFO")


def _add_restore(commands: Commands) -> None:
    restore = add_command(
        commands,
        "restore",
        "rebuild a broker's log folders from its bucket",
        "Rebuilds empty log folders from the bucket. Then start `strandline serve`.",
        _RESTORE_EXAMPLES,
        _restore,
    )
    restore.add_argument(
        "--remote",
        type=archive_url,
        metavar="URL",
        help="the archive; else strandline.remote.url is taken",
    )
    add_bucket_access(restore)
    restore.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out what is damaged, missing or has an older manifest; restore the rest",
    )
    _add_configuration(restore, log_level="WARNING")


def _add_configuration(command: CommandParser, *, log_level: str) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="a Kafka properties file")
    add_repeated(
        command,
        "--set",
        "KEY=VALUE",
        "a property, over that of the file; may be repeated",
        "overrides",
    )
    command.add_argument(
        "--log-level",
        default=log_level,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help=f"least severe line that is logged, on standard error [{log_level}]",
    )


def _add_offline(name: str, commands: Commands) -> None:
    from strandline.broker.commands.offline_commands import COMMANDS as OFFLINE

    OFFLINE[name](commands)


def _add_docs(commands: Commands) -> None:
    from strandline.broker.commands.docs_command import add_docs

    add_docs(commands)


# In the order of the help text; those of `broker/tools` follow.
COMMANDS: Mapping[str, Callable[[Commands], None]] = {
    "serve": _add_serve,
    "restore": _add_restore,
    **{
        name: partial(_add_offline, name)
        for name in ("archive", "lake", "table", "dump-log", "verify")
    },
    "docs": _add_docs,
}


def _with_archive(url: str) -> Sequence[str]:
    """Properties for a first look: with the defaults an archive shows nothing for minutes."""
    return (
        "remote.log.storage.system.enable=true",
        f"strandline.remote.url={url}",
        "log.retention.check.interval.ms=1000",
        "log.initial.task.delay.ms=1000",
    )


def configuration_of(options: argparse.Namespace) -> BrokerConfig:
    """The configuration of `serve`; what is set beside `--archive` overrides what that stands for.

    Raises InvalidConfig.
    """
    from strandline.broker.config.loading import load_config

    chosen = {one.partition("=")[0].strip() for one in options.overrides}
    archive = _with_archive(options.archive) if options.archive else ()
    implied = [one for one in archive if one.partition("=")[0] not in chosen]
    if options.brokers is not None:
        implied.append(f"strandline.brokers={options.brokers}")
    return load_config(options.config, [*implied, *options.overrides])


def _serve(options: argparse.Namespace) -> int:
    # A start makes many objects and hardly any garbage. The broker enables the collector again.
    gc.disable()

    from strandline.broker.config.loading import warn_of_unused_archive
    from strandline.broker.server.logs import set_up_logging
    from strandline.broker.server.parts.front import check_listeners
    from strandline.broker.server.process import run
    from strandline.broker.server.roles import role_of
    from strandline.broker.server.supervised import SUPERVISED
    from strandline.broker.server.upkeep.folder_marks import are_of_several, check_no_replica

    set_up_logging(options.log_level, process=os.environ.get(SUPERVISED, ""))
    config = configuration_of(options)
    check_listeners(config)
    if config.membership.brokers > 1:
        if options.read_only:
            raise InvalidConfig("--read-only and strandline.brokers: a replica is one broker")
        from strandline.broker.server.supervisor.supervisor import run_brokers

        return run_brokers(config, log_level=options.log_level, become=main)
    if not options.read_only:
        if config.membership.is_alone and are_of_several(config.logs.dirs):
            from strandline.broker.server.supervisor.folders import become_one

            become_one(config)
        check_no_replica(config.logs.dirs)
        warn_of_unused_archive(config)
    code = run(config, role_of(config, is_read_only=options.read_only))
    _leave_if_hanging(code)
    return code


# Idle threads end at once; a thread that is alive after this time waits for a hanging server.
LEAVE_WAIT_S = 0.5


def _leave_if_hanging(code: int) -> None:
    """Ends the process even if its threads wait; Python would wait for the requests' timeouts.

    The logs are closed and marked clean by now, and an interrupted upload leaves an orphan.
    """
    deadline_s = SystemClock().monotonic_s() + LEAVE_WAIT_S
    for thread in threading.enumerate():
        # A thread for which the system had no memory never started, and cannot be joined.
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(max(0.0, deadline_s - SystemClock().monotonic_s()))
    if threading.active_count() > 1:
        from strandline.broker.server.process import flush

        logging.shutdown()
        flush()
        os._exit(code)


def _restore(options: argparse.Namespace) -> int:
    from strandline.broker.commands.restore_command import restore
    from strandline.broker.config.loading import load_config
    from strandline.broker.server.logs import set_up_logging

    set_up_logging(options.log_level)
    check_environment()
    remote = {
        "strandline.remote.url": options.remote,
        "strandline.remote.s3.endpoint.url": options.endpoint_url,
        "strandline.remote.s3.region": options.region,
        "strandline.remote.s3.ca.file": options.ca_file,
    }
    given = [f"{key}={value}" for key, value in remote.items() if value is not None]
    config = load_config(options.config, [*options.overrides, *given])
    return restore(config, skip_damaged=options.skip_damaged)


if __name__ == "__main__":
    sys.exit(main())

"""The command line: serve, look into an archive, plan a query over it, look into log folders;
and the tools of `broker/tools` for any cluster.

Every command says what it takes with `--help`. Mistakes of the user end with one line on standard
error and exit code 2; failures of the world with one line and exit code 1.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from strandline import __version__
from strandline.broker.tools.failures import WrongUse
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig, StrandlineError

USAGE_ERROR = 2
FAILURE = 1
# What a shell makes of a process that SIGINT ended.
INTERRUPTED = 130

_SERVE_EXAMPLES = """
examples:
  a broker with local storage only
    strandline serve --set log.dirs=/var/lib/strandline

  with history in S3 (credentials come from the usual AWS chain)
    strandline serve --set log.dirs=/var/lib/strandline \\
      --set remote.log.storage.system.enable=true \\
      --set strandline.remote.url=s3://my-bucket/my-cluster

  a read-only replica of that archive, with folders of its own
    strandline serve --read-only --set log.dirs=/var/lib/strandline-replica \\
      --set strandline.remote.url=s3://my-bucket/my-cluster

  from a Kafka properties file, one key changed
    strandline serve --config server.properties --set listeners=PLAINTEXT://:9093

Then create a topic with remote.storage.enable=true to have its closed segments archived.
All keys: docs/configuration.md
"""

_RESTORE_EXAMPLES = """
examples:
  the broker's own configuration, on a new machine
    strandline restore --config server.properties

  or by hand
    strandline restore --remote s3://my-bucket/my-cluster --set log.dirs=/var/lib/strandline

The log folders must be empty. The bucket is only read. If it is interrupted, run it again.
"""

_ARCHIVE_EXAMPLES = """
Works on the bucket alone; no broker has to run. Nothing is changed there but by verify --repair,
orphans --delete and lifecycle --apply.

examples:
  strandline archive ls   --remote s3://my-bucket/my-cluster
  strandline archive ls   --remote s3://my-bucket/my-cluster --topic orders
  strandline archive show --remote file:///srv/archive --topic orders
  strandline archive verify --remote s3://my-bucket/my-cluster --quick
"""

_LAKE_EXAMPLES = """
Reads manifests and statistics, never a log. Needs strandline[lake].

examples:
  strandline lake plan --remote s3://my-bucket/my-cluster --topic orders \\
      --where 'timestamp >= 2024-02-01T10:00:00Z' --where 'timestamp < 2024-02-01T11:00:00Z'
  strandline lake plan --remote file:///srv/archive --topic orders --where 'key = customer-7'
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the process's exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _parser(given[0] if given else "").parse_args(given)
    try:
        code: int = options.run(options)
    except (InvalidConfig, WrongUse) as error:
        print(f"strandline: {error}", file=sys.stderr)
        return USAGE_ERROR
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `strandline archive ls | head`: the reader has seen enough.
        sys.stderr.close()
        return 0
    return code


def _parser(command: str) -> argparse.ArgumentParser:
    """A parser that knows `command` alone if it is one of COMMANDS, and otherwise everything.

    Making the parsers of all commands takes longer than a broker takes to open its log folders.
    """
    parser = argparse.ArgumentParser(
        prog="strandline",
        description="A Kafka-compatible broker with two storage tiers: local disk and S3.",
    )
    parser.add_argument("--version", action="version", version=f"strandline {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    if command in COMMANDS:
        COMMANDS[command](commands)
        return parser
    from strandline.broker.tools.arguments import add_commands

    for add in COMMANDS.values():
        add(commands)
    add_commands(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="run a broker",
        description="Runs a broker until SIGTERM or SIGINT. Prints one line when it is ready.",
        epilog=_SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument(
        "--read-only",
        action="store_true",
        help="serve another broker's archive and follow it as it grows; nothing is written there",
    )
    _add_configuration(serve, log_level="INFO")
    serve.set_defaults(run=_serve)


def _add_restore(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    restore = commands.add_parser(
        "restore",
        help="make a broker again from its bucket, after every local disk was lost",
        description="Fills empty log folders from the bucket. Then `strandline serve` goes on.",
        epilog=_RESTORE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    restore.add_argument(
        "--remote", metavar="URL", help="the archive; else strandline.remote.url is taken"
    )
    restore.add_argument("--endpoint-url", metavar="URL", help="of an S3 that is not AWS")
    restore.add_argument("--region", help="of the bucket")
    restore.add_argument(
        "--skip-damaged",
        action="store_true",
        help="restore the other partitions if some manifests are damaged",
    )
    _add_configuration(restore, log_level="WARNING")
    restore.set_defaults(run=_restore)


def _add_configuration(command: argparse.ArgumentParser, *, log_level: str) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="a Kafka properties file")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="one configuration key, over the file; may be repeated",
    )
    command.add_argument(
        "--log-level",
        default=log_level,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help=f"[{log_level}]",
    )


def _add_archive(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    archive = commands.add_parser(
        "archive",
        help="look into a bucket: what is archived, and where",
        epilog=_ARCHIVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = archive.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, help_text, run in (
        ("ls", "one line per partition", _archive_ls),
        ("show", "one line per segment", _archive_show),
    ):
        action = actions.add_parser(
            name,
            help=help_text,
            description=help_text,
            epilog=_ARCHIVE_EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_remote(action)
        action.add_argument("--topic", help="one topic only")
        action.set_defaults(run=run)
    _add_verify(actions)
    _add_orphans(actions)
    _add_lifecycle(actions)


def _add_remote(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--remote",
        required=True,
        metavar="URL",
        help="s3://bucket/prefix or file:///folder, as in strandline.remote.url",
    )
    action.add_argument("--endpoint-url", metavar="URL", help="of an S3 that is not AWS")
    action.add_argument("--region", help="of the bucket")


def _add_verify(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = actions.add_parser(
        "verify",
        help="compare every manifest with what lies in the bucket",
        description="Looks for missing and damaged objects, gaps and overlaps. Exit code 0: whole;"
        " 3: something is damaged.",
    )
    _add_remote(verify)
    verify.add_argument("--topic", help="one topic only")
    depth = verify.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="sizes only, from listings: a request per 1000 objects"
    )
    depth.add_argument("--deep", action="store_true", help="read every byte of every segment")
    verify.add_argument(
        "--repair", action="store_true", help="make damaged .meta objects again from their segments"
    )
    verify.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="note what is done, and go on from there if the file exists",
    )
    verify.set_defaults(run=_archive_verify)


def _add_orphans(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    orphans = actions.add_parser(
        "orphans",
        help="objects that nothing refers to",
        description="Lists what uploads, merges and purges that died have left behind.",
    )
    _add_remote(orphans)
    orphans.add_argument(
        "--delete", action="store_true", help="delete what a readable manifest does not name"
    )
    orphans.add_argument(
        "--delete-all",
        action="store_true",
        help="also what lies in folders without a manifest or topic.json: look before you do",
    )
    orphans.add_argument(
        "--grace-hours",
        type=float,
        default=24.0,
        metavar="N",
        help="leave out what is younger: an upload may be under way [24]",
    )
    orphans.set_defaults(run=_archive_orphans)


def _add_lifecycle(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lifecycle = actions.add_parser(
        "lifecycle",
        help="the bucket rule that aborts unfinished uploads",
        description="Prints the rule; --apply adds it to the bucket's own, which stay.",
    )
    _add_remote(lifecycle)
    lifecycle.add_argument("--apply", action="store_true", help="add it to the bucket")
    lifecycle.set_defaults(run=_archive_lifecycle)


def _add_lake(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lake = commands.add_parser("lake", help="what a query over the archive would read, and why")
    actions = lake.add_subparsers(title="actions", required=True, metavar="ACTION")
    plan = actions.add_parser(
        "plan",
        help="segments, chunks, bytes and requests of a query, and what it leaves out",
        description="Plans a query over the archive without reading any log.",
        epilog=_LAKE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("--remote", required=True, metavar="URL", help="as in strandline.remote.url")
    plan.add_argument("--topic", help="topics, joined by commas")
    plan.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="'COLUMN OPERATOR VALUE'",
        help="a filter on topic, partition, offset, timestamp or key; may be repeated",
    )
    plan.add_argument(
        "--option",
        action="append",
        default=[],
        dest="query_options",
        metavar="NAME=VALUE",
        help="an option of the Spark source, see docs/lake.md; may be repeated",
    )
    plan.add_argument("--endpoint-url", metavar="URL", help="of an S3 that is not AWS")
    plan.add_argument("--region", help="of the bucket")
    plan.set_defaults(run=_lake_plan)


def _add_verify_folders(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser(
        "verify",
        help="check everything in the log folders of a broker",
        description="Reads every batch, index, snapshot and checkpoint, changes nothing, and says"
        " what to do about what is wrong. All folders of log.dirs belong into one call. A broker"
        " may run meanwhile; what it is writing is left out. Exit code 0: whole; 3: something is"
        " damaged.",
    )
    verify.add_argument("folders", type=Path, nargs="+", metavar="DATA_FOLDER")
    verify.set_defaults(run=_verify_folders)


def _add_dump_log(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dump = commands.add_parser(
        "dump-log",
        help="print what is in a segment, index, snapshot or checkpoint file",
        description="Prints a log file batch by batch; other files entry by entry.",
    )
    dump.add_argument("file", type=Path, metavar="FILE")
    dump.add_argument("--records", action="store_true", help="print every record as well")
    dump.add_argument("--verify", action="store_true", help="check every CRC")
    dump.set_defaults(run=_dump_log)


# In the order of the help text; those of `broker/tools` follow.
COMMANDS: Mapping[str, Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None]] = {
    "serve": _add_serve,
    "restore": _add_restore,
    "archive": _add_archive,
    "lake": _add_lake,
    "dump-log": _add_dump_log,
    "verify": _add_verify_folders,
}


def _serve(options: argparse.Namespace) -> int:
    # A start makes a great many objects and drops next to none. The broker turns it on again.
    gc.disable()
    asyncio = _asyncio_without_tls()

    from strandline.broker.app import Broker
    from strandline.broker.config import BrokerConfig
    from strandline.broker.folder_marks import check_no_replica
    from strandline.broker.logs import set_up_logging
    from strandline.broker.serving import serve

    set_up_logging(options.log_level)
    config = BrokerConfig.load(options.config, options.overrides)
    clock = SystemClock()
    if options.read_only:
        from strandline.broker.replica import ReplicaBroker

        make_broker: Callable[[], Broker] = partial(ReplicaBroker, config, clock)
    else:
        check_no_replica(config.log_dirs)
        make_broker = partial(Broker, config, clock)
    code: int = asyncio.run(serve(make_broker))
    _leave_if_hanging(code)
    return code


def _asyncio_without_tls() -> ModuleType:
    """asyncio, loaded as in a Python that was built without OpenSSL.

    It loads `ssl` for its own TLS, which no connection of a broker uses, and that takes a thirtieth
    of a start. Who speaks TLS here, to the object store, imports `ssl` itself and gets it.
    """
    if "ssl" in sys.modules or "asyncio" in sys.modules:
        return import_module("asyncio")
    sys.modules["ssl"] = None  # type: ignore[assignment]  # what makes its import fail
    try:
        return import_module("asyncio")
    finally:
        del sys.modules["ssl"]


# Threads without work end at once; whoever is still there waits for a server that hangs.
LEAVE_WAIT_S = 0.5


def _leave_if_hanging(code: int) -> None:
    """Ends the process, whatever its threads wait for.

    The logs are closed and marked clean by now, and an upload that was cut off is an orphan. Python
    would wait until every request has run into its timeout.
    """
    deadline_s = SystemClock().monotonic_s() + LEAVE_WAIT_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - SystemClock().monotonic_s()))
    if threading.active_count() > 1:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _restore(options: argparse.Namespace) -> int:
    from strandline.broker.config import BrokerConfig
    from strandline.broker.logs import set_up_logging
    from strandline.broker.restore_command import restore
    from strandline.storage.crash_points import check_environment

    set_up_logging(options.log_level)
    check_environment()
    remote = {
        "strandline.remote.url": options.remote,
        "strandline.remote.s3.endpoint.url": options.endpoint_url,
        "strandline.remote.s3.region": options.region,
    }
    given = [f"{key}={value}" for key, value in remote.items() if value is not None]
    config = BrokerConfig.load(options.config, [*options.overrides, *given])
    return restore(config, skip_damaged=options.skip_damaged)


def _archive_ls(options: argparse.Namespace) -> int:
    from strandline.broker.archive_tables import print_partitions

    return print_partitions(
        options.remote,
        endpoint_url=options.endpoint_url,
        region=options.region,
        topic=options.topic,
    )


def _archive_show(options: argparse.Namespace) -> int:
    from strandline.broker.archive_tables import print_segments

    return print_segments(
        options.remote,
        endpoint_url=options.endpoint_url,
        region=options.region,
        topic=options.topic,
    )


def _lake_plan(options: argparse.Namespace) -> int:
    from strandline.spark_lake.plan_table import print_plan

    given = list(options.query_options)
    if options.endpoint_url:
        given.append(f"s3.endpoint.url={options.endpoint_url}")
    if options.region:
        given.append(f"s3.region={options.region}")
    return print_plan(options.remote, topics=options.topic, where=options.where, options=given)


def _archive_verify(options: argparse.Namespace) -> int:
    from strandline.broker.archive_commands import VerifyOptions, open_remote, verify
    from strandline.storage.tiering.scrub import Depth

    depth = Depth.EVERYTHING if options.deep else Depth.CHECKSUMS
    return verify(
        open_remote(options.remote, options.endpoint_url, options.region),
        VerifyOptions(
            topic=options.topic,
            depth=Depth.SIZES if options.quick else depth,
            repair=options.repair,
            state=options.state,
        ),
    )


def _archive_orphans(options: argparse.Namespace) -> int:
    from strandline.broker.archive_commands import open_remote, orphans

    return orphans(
        open_remote(options.remote, options.endpoint_url, options.region),
        delete=options.delete,
        delete_all=options.delete_all,
        grace_hours=options.grace_hours,
    )


def _archive_lifecycle(options: argparse.Namespace) -> int:
    from strandline.broker.archive_commands import lifecycle, open_remote

    return lifecycle(
        open_remote(options.remote, options.endpoint_url, options.region), apply=options.apply
    )


def _verify_folders(options: argparse.Namespace) -> int:
    from strandline.broker.verify_command import verify

    for folder in options.folders:
        if not folder.is_dir():
            print(f"strandline: no such folder: {folder}", file=sys.stderr)
            return USAGE_ERROR
    return verify(options.folders)


def _dump_log(options: argparse.Namespace) -> int:
    from strandline.storage.local.dump import dump_log

    if not options.file.is_file():
        what = "is a folder, name a file in it" if options.file.is_dir() else "no such file"
        print(f"strandline: {what}: {options.file}", file=sys.stderr)
        return USAGE_ERROR
    for line in dump_log(options.file, verify=options.verify, print_records=options.records):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Commands for a bucket or log folders, which need no broker.

    archive    ls, show, usage, verify, ...              over a bucket
    lake       plan                                      over a bucket, as Spark would
    table      sync                                      from a bucket to an Iceberg table
    verify     every file of a broker's log folders      exit code 3: something is damaged
    dump-log   one file of a log folder                  exit code 3: it is damaged

Each command adds its arguments here and is imported when it is called.
"""

from __future__ import annotations

import argparse
import math
import stat
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.broker.commands.prices import PRICE_FORM, price_of
from strandline.broker.commands.table_commands import add_table
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.timestamps import duration_ms
from strandline.broker.tools.commands.options import (
    CommandParser,
    Commands,
    Run,
    add_actions,
    add_bucket,
    add_command,
    add_json,
    add_repeated,
    add_yes,
    given_name,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.extras import how_to_install

if TYPE_CHECKING:
    from strandline.storage.remote.object_store.interface import ObjectStore

_ARCHIVE_EXAMPLES = {
    "ls": """
  strandline archive ls --remote s3://my-bucket/prefix
  strandline archive ls --remote file:///srv/archive --topic orders --json
""",
    "show": """
  strandline archive show --remote s3://my-bucket/prefix --topic orders
""",
    "usage": """
  strandline archive usage --remote s3://my-bucket/prefix
  strandline archive usage --remote s3://my-bucket/prefix --price STANDARD=0.023
""",
    "retention": """
  strandline archive retention --remote s3://my-bucket/prefix --topic orders \\
      --retention-ms 90d
""",
    "verify": """
  strandline archive verify --remote s3://my-bucket/prefix           # checksums
  strandline archive verify --remote s3://my-bucket/prefix --quick   # sizes alone
  strandline archive verify --remote s3://my-bucket/prefix --deep \\
      --state verify.json               # every byte; continues where it stopped
""",
    "orphans": """
  strandline archive orphans --remote s3://my-bucket/prefix          # prints them
  strandline archive orphans --remote s3://my-bucket/prefix --delete        # asks
  strandline archive orphans --remote s3://my-bucket/prefix --delete --yes  # does not
""",
    "lifecycle": """
  strandline archive lifecycle --remote s3://my-bucket/prefix        # prints it
  strandline archive lifecycle --remote s3://my-bucket/prefix --apply
""",
}

_ARCHIVE_NOTES = """
These commands need the bucket alone. A broker may run, and notices nothing.
Only verify --repair and --drop-pieces, orphans --delete and --delete-all, and
lifecycle --apply change the bucket. Before a step that cannot be undone, a
command shows it and asks; without a terminal it needs --yes. Credentials come
from the usual AWS chain.
"""

_VERIFY_EXAMPLES = """
examples:
  strandline verify /var/lib/strandline
  strandline verify /disk1/strandline /disk2/strandline     # all folders of log.dirs in one call
"""

_DUMP_EXAMPLES = """
examples:
  strandline dump-log /var/lib/strandline/orders-0/00000000000000000000.log
  strandline dump-log /var/lib/strandline/orders-0/00000000000000000000.log --records --verify
  strandline dump-log /var/lib/strandline/orders-0/00000000000000000000.timeindex
"""

_LAKE_EXAMPLES = """
Reads manifests and statistics, never a log. Needs strandline[scan].

examples:
  strandline lake plan --remote s3://my-bucket/my-cluster --topic orders \\
      --where 'timestamp >= 2024-02-01T10:00:00Z' --where 'timestamp < 2024-02-01T11:00:00Z'
  strandline lake plan --remote file:///srv/archive --topic orders --where 'key = customer-7'
  strandline lake plan --remote s3://archive --endpoint-url http://127.0.0.1:4566 \\
      --option subscribePattern='^orders' --option includeOpenSegment=false
"""


def _add_archive(commands: Commands) -> None:
    archive = add_command(
        commands,
        "archive",
        "look into a bucket: what is archived, and where",
        "Looks into a bucket: what is archived, where, and whether it is whole.",
        _archive_epilog(*_ARCHIVE_EXAMPLES),
    )
    actions = add_actions(archive)
    for name, text, run in (
        ("ls", "one line per partition", _archive_ls),
        ("show", "one line per segment", _archive_show),
    ):
        action = _archive_action(actions, name, text, f"Prints {text}.", run)
        _add_topic(action)
        if name == "show":
            action.add_argument("--partition", type=int, metavar="N", help="one partition only")
        add_json(action)
    _add_usage(actions)
    _add_retention(actions)
    _add_verify(actions)
    _add_orphans(actions)
    _add_lifecycle(actions)


def _archive_action(
    actions: Commands, name: str, text: str, description: str, run: Run
) -> CommandParser:
    action = add_command(actions, name, text, _wrapped(description), _archive_epilog(name), run)
    add_bucket(action)
    return action


def _hours(text: str) -> float:
    """For `add_argument`: neither NaN nor infinite."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is no number of hours")
    return number


def _add_topic(action: CommandParser) -> None:
    action.add_argument("--topic", type=given_name, help="one topic only")


def _archive_epilog(*actions: str) -> str:
    examples = "\n".join(_ARCHIVE_EXAMPLES[action].strip("\n") for action in actions)
    return f"examples:\n{examples}\n{_ARCHIVE_NOTES}"


def _wrapped(text: str) -> str:
    """Wraps text for the formatter that keeps line breaks, and so examples, as they are."""
    return textwrap.fill(text, 78)


def _add_verify(actions: Commands) -> None:
    verify = _archive_action(
        actions,
        "verify",
        "compare every manifest with what lies in the bucket",
        "Looks for missing and damaged objects, gaps and overlaps, and says what to do about"
        " them. Compares checksums as the store keeps them, and sizes where it keeps none."
        " Exit code 0: whole; 3: something is damaged; 1: it could not look.",
        _archive_verify,
    )
    _add_topic(verify)
    depth = verify.add_alternatives()
    depth.add_argument(
        "--quick", action="store_true", help="sizes only, from listings: a request per 1000 objects"
    )
    depth.add_argument("--deep", action="store_true", help="read every byte of every segment")
    verify.add_argument(
        "--repair", action="store_true", help="rebuild damaged .meta objects from their segments"
    )
    verify.add_argument(
        "--drop-pieces",
        action="store_true",
        help="remove damaged pieces of open segments, and the pieces after them",
    )
    add_yes(verify)
    verify.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="store the progress; if the file exists, continue from there",
    )


def _add_usage(actions: Commands) -> None:
    usage = _archive_action(
        actions,
        "usage",
        "what is paid for: objects and bytes by topic, kind and storage class",
        "Counts all objects under the prefix, with older versions, unfinished uploads and orphans."
        " Makes two requests per 1000 objects, and reads no object.",
        _archive_usage,
    )
    add_repeated(
        usage,
        "--price",
        PRICE_FORM,
        "of a GiB and month in a storage class; may be repeated",
        "prices",
    )
    add_json(usage)


def _add_retention(actions: Commands) -> None:
    retention = _archive_action(
        actions,
        "retention",
        "what limits would delete, before they are set",
        "Says what the given limits would delete of a topic's archive now, partition by"
        " partition. Nothing is changed. A limit that is not given is the topic's own.",
        _archive_retention,
    )
    retention.add_argument("--topic", type=given_name, required=True, help="the topic")
    retention.add_argument("--retention-ms", metavar="TIME", help="30d, 12h, milliseconds; -1: all")
    retention.add_argument("--retention-bytes", type=int, metavar="N", help="of a partition")
    add_json(retention)


def _add_orphans(actions: Commands) -> None:
    orphans = _archive_action(
        actions,
        "orphans",
        "objects that nothing refers to",
        "Lists orphans: the rest of uploads, merges and purges that died.",
        _archive_orphans,
    )
    _add_topic(orphans)
    orphans.add_argument(
        "--delete", action="store_true", help="delete what a readable manifest does not name"
    )
    orphans.add_argument(
        "--delete-all",
        action="store_true",
        help="delete every listed object, also what a lost or newer manifest, or a lost"
        " topic.json, may own: possibly the only copies of records; cannot be undone",
    )
    add_yes(orphans)
    orphans.add_argument(
        "--grace-hours",
        type=_hours,
        default=24.0,
        metavar="N",
        help="ignore younger objects: an upload may be under way [24]",
    )


def _add_lifecycle(actions: Commands) -> None:
    lifecycle = _archive_action(
        actions,
        "lifecycle",
        "the bucket rule that aborts unfinished uploads",
        "Prints the rule; --apply adds it to the bucket's own, which stay.",
        _archive_lifecycle,
    )
    lifecycle.add_argument("--apply", action="store_true", help="add it to the bucket")


def _add_lake(commands: Commands) -> None:
    lake = add_command(
        commands,
        "lake",
        "what a query over the archive would read, and why",
        "Shows what a query over the archive would read, and why.",
        _LAKE_EXAMPLES,
    )
    actions = add_actions(lake)
    plan = add_command(
        actions,
        "plan",
        "segments, chunks, bytes and requests of a query, and what it leaves out",
        "Plans a query over the archive without reading any log.",
        _LAKE_EXAMPLES,
        _lake_plan,
    )
    add_bucket(plan)
    plan.add_argument("--topic", help="topics, joined by commas")
    add_repeated(
        plan,
        "--where",
        "'COLUMN OPERATOR VALUE'",
        "a filter on topic, partition, offset, timestamp or key, with = != < <= > >=; a time"
        " is ISO (UTC without a zone) or milliseconds; may be repeated, and all have to hold",
    )
    add_repeated(
        plan,
        "--option",
        "NAME=VALUE",
        "an option of the Spark source, see: strandline docs reference/lake-options; may be"
        " repeated",
        "query_options",
    )


def _add_verify_folders(commands: Commands) -> None:
    verify = add_command(
        commands,
        "verify",
        "check everything in the log folders of a broker",
        _wrapped(
            "Reads every batch, index, snapshot and checkpoint, and prints what to do about each"
            " finding. Changes nothing. Beside a running broker it ignores what that is writing."
            " Exit code 0: whole; 3: something is damaged."
        ),
        _VERIFY_EXAMPLES,
        _verify_folders,
    )
    verify.add_argument(
        "folders", type=Path, nargs="+", metavar="DATA_FOLDER", help="one of log.dirs, or several"
    )


def _add_dump_log(commands: Commands) -> None:
    dump = add_command(
        commands,
        "dump-log",
        "print what is in a segment, index, snapshot or checkpoint file",
        "Prints a log file batch by batch; other files entry by entry."
        " Ends with 3 if the file is damaged.",
        _DUMP_EXAMPLES,
        _dump_log,
    )
    dump.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="by its name: .log, .index, .timeindex, .txnindex, .snapshot, or a checkpoint",
    )
    dump.add_argument("--records", action="store_true", help="print every record as well")
    dump.add_argument("--verify", action="store_true", help="check every CRC")


COMMANDS: Mapping[str, Callable[[Commands], None]] = {
    "archive": _add_archive,
    "lake": _add_lake,
    "table": add_table,
    "dump-log": _add_dump_log,
    "verify": _add_verify_folders,
}


def _bucket(options: argparse.Namespace) -> ObjectStore:
    from strandline.storage.remote.open_store import open_store

    return open_store(
        options.remote,
        endpoint_url=options.endpoint_url,
        region=options.region,
        ca_file=options.ca_file,
    )


def _archive_ls(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.tables import print_partitions

    return print_partitions(_bucket(options), topic=options.topic, as_json=options.json)


def _archive_show(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.tables import print_segments

    return print_segments(
        _bucket(options), topic=options.topic, partition=options.partition, as_json=options.json
    )


def _lake_plan(options: argparse.Namespace) -> int:
    try:
        from strandline.broker.commands.lake_plan import print_plan
    except ImportError as error:
        raise InvalidConfig(f"{error}; {how_to_install('scan')}") from error
    given = list(options.query_options)
    if options.endpoint_url:
        given.append(f"s3.endpoint.url={options.endpoint_url}")
    if options.region:
        given.append(f"s3.region={options.region}")
    if options.ca_file:
        given.append(f"s3.ca.file={options.ca_file}")
    return print_plan(options.remote, topics=options.topic, where=options.where, options=given)


def _archive_verify(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.commands import VerifyOptions, verify
    from strandline.storage.tiering.audit.scrub import Depth

    depth = Depth.EVERYTHING if options.deep else Depth.CHECKSUMS
    return verify(
        _bucket(options),
        VerifyOptions(
            topic=options.topic,
            depth=Depth.SIZES if options.quick else depth,
            repair=options.repair,
            drop_pieces=options.drop_pieces,
            yes=options.yes,
            state=options.state,
        ),
    )


def _archive_usage(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.usage import print_usage

    return print_usage(
        _bucket(options),
        prices=dict(price_of(text) for text in options.prices),
        as_json=options.json,
    )


def _archive_retention(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.retention import print_retention

    given: str | None = options.retention_ms
    retention_ms = None
    if given is not None:
        is_number = given.removeprefix("-").isdecimal()
        retention_ms = int(given) if is_number else duration_ms(given)
    for limit in (retention_ms, options.retention_bytes):
        if limit is not None and limit < -1:
            raise WrongUse(f"{limit} is no limit", remedy="-1 stands for no limit")
    return print_retention(
        _bucket(options),
        options.topic,
        retention_ms=retention_ms,
        retention_bytes=options.retention_bytes,
        as_json=options.json,
    )


def _archive_orphans(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.orphans import orphans

    return orphans(
        _bucket(options),
        topic=options.topic,
        delete=options.delete,
        delete_all=options.delete_all,
        yes=options.yes,
        grace_hours=options.grace_hours,
    )


def _archive_lifecycle(options: argparse.Namespace) -> int:
    from strandline.broker.commands.archive.commands import lifecycle

    return lifecycle(_bucket(options), apply=options.apply)


def _is_kind(path: Path, has_kind: Callable[[int], bool]) -> bool:
    """As `is_dir` and `is_file`, which new Pythons answer also where they may not look.

    Raises PermissionError.
    """
    try:
        return has_kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _verify_folders(options: argparse.Namespace) -> int:
    from strandline.broker.commands.verify_command import verify
    from strandline.storage.local.inspect.verify import is_log_folder

    for folder in options.folders:
        if not _is_kind(folder, stat.S_ISDIR):
            raise WrongUse(f"no such folder: {folder}")
        if not is_log_folder(folder):
            raise WrongUse(
                f"{folder} has neither meta.properties nor a partition: name folders of log.dirs"
            )
    return verify(options.folders)


def _dump_log(options: argparse.Namespace) -> int:
    from strandline.broker.commands.verify_command import DAMAGED
    from strandline.storage.local.inspect.dump import DamageLine, dump_log

    if not _is_kind(options.file, stat.S_ISREG):
        what = "is a folder, name a file in it" if options.file.is_dir() else "no such file"
        raise WrongUse(f"{what}: {options.file}")
    ended = 0
    for line in dump_log(options.file, verify=options.verify, print_records=options.records):
        print(line)
        if isinstance(line, DamageLine):
            ended = DAMAGED
    return ended

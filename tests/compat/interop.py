"""`make interop`: Apache Kafka's own Java tools against a fresh broker, one after the other.

    python -m tests.compat.interop KAFKA_LIBRARIES [WORD ...]       only tools whose name has a WORD

Each step runs one tool as Kafka's shell scripts do, and looks for what it must have printed; a few
are a client of ours, which leaves a tool something to find. A step may rely on what earlier ones
left behind, so they run in order, and the first that fails does not stop the rest. The table says
which tool could do what; the exit code is 1 if one could not. Those with TLS, logins and ACLs are
in `interop_secured`, MirrorMaker in `mirror`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC, decode_value
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.record import Record
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import create_topic, fetch
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

# A JVM needs two seconds to start on a busy machine; the perf tools and a rebalance a few more.
STEP_SECONDS_MAX = 90
SHOWN_ON_FAILURE_LINES = 12
# Few, so that a tool that reads all of __transaction_state is soon through.
STATE_PARTITIONS = 3

TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand"
CONFIGS = TOOLS + "ConfigCommand"
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
PRODUCER = TOOLS + "ConsoleProducer"
CONSUMER = TOOLS + "consumer.ConsoleConsumer"
TRANSACTIONS = TOOLS + "TransactionsCommand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of a tool; `{name}` in arguments are filled in from `Session`."""

    does: str
    tool: str
    arguments: str
    # Regular expressions, each to be found in standard output (or error, for a refusal). A later
    # step may name their named groups in its arguments.
    expects: tuple[str, ...]
    # Regular expressions, none of which may be found there.
    lacks: tuple[str, ...] = ()
    stdin: str = ""
    fails: bool = False
    # Most tools take it under this name.
    bootstrap_option: str = "--bootstrap-server"
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a client of ours does between two tools; an AssertionError says why it failed."""

    does: str
    call: Callable[[Clients], None]
    tool: str = "client"


class Clients:
    """Producers on a bare connection, and a reader of what they left."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._opener = WireProducer(client, "opener", version=2)

    def leave_open(self) -> None:
        create_topic(self._client, "opened", 1)
        self._opener.begin()
        self._opener.send("opened", b"never committed")

    def expect_fenced(self) -> None:
        assert self._opener.try_send("opened", b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert self._opener.commit() is ErrorCode.PRODUCER_FENCED
        assert committed_values(self._client, "opened") == []

    def make_stuck(self) -> None:
        create_topic(self._client, "stuck", 1, {"retention.ms": "-1"})

    def leave_hanging(self) -> None:
        """Its record has a timestamp of long ago, and its coordinator does not know of it."""
        stranger = WireProducer(self._client, "stranger", version=1)
        stranger.begin()
        assert stranger.write("stuck", b"hangs") is ErrorCode.NONE

    def expect_log_ends_in_state(self) -> None:
        """Records of `__transaction_state` have the tag that only we know."""
        assert any(
            decode_value(record.value).log_ends
            for partition in range(STATE_PARTITIONS)
            for record in self._state(partition)
            if record.value is not None
        )

    def _state(self, partition: int) -> Iterator[Record]:
        answer = fetch(self._client, TRANSACTION_TOPIC, 0, partition=partition)
        buffer = codec.join(answer.records)
        for batch in walk(buffer):
            yield from iter_records(buffer, batch.header, batch.position)


def steps() -> Sequence[Step | Call]:
    """In order; see the top."""
    return [
        Step(
            does="asks which APIs there are",
            tool=TOOLS + "BrokerApiVersionsCommand",
            arguments="",
            expects=(r"Produce\(0\): 0 to 13", r"Fetch\(1\): 0 to 1[78]"),
        ),
        Step(
            does="describes the cluster",
            tool=TOOLS + "ClusterTool",
            arguments="cluster-id",
            expects=(r"Cluster ID: \S{22}",),
        ),
        Step(
            does="describes who keeps the metadata",
            tool=TOOLS + "MetadataQuorumCommand",
            arguments="describe --status",
            expects=(r"LeaderId: +1\n", r'CurrentVoters: +\[\{"id": 1, "directoryId": "\S{22}"'),
        ),
        Step(
            does="creates a topic",
            tool=TOPICS,
            arguments="--create --topic orders --partitions 3 --config retention.ms=86400000",
            expects=("Created topic orders",),
        ),
        Step(
            does="creates a topic with assigned replicas",
            tool=TOPICS,
            arguments="--create --topic placed --replica-assignment 1,1",
            expects=("Created topic placed",),
        ),
        Step(
            does="is told that a topic exists",
            tool=TOPICS,
            arguments="--create --topic orders",
            expects=("Topic 'orders' already exists",),
            fails=True,
        ),
        Step(
            does="lists topics",
            tool=TOPICS,
            arguments="--list",
            expects=(r"(?m)^orders$", r"(?m)^placed$"),
        ),
        Step(
            does="describes a topic",
            tool=TOPICS,
            arguments="--describe --topic orders",
            expects=(
                r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=86400000",
                r"Partition: 2\s+Leader: 1\s+Replicas: 1\s+Isr: 1",
            ),
        ),
        Step(
            does="adds partitions",
            tool=TOPICS,
            arguments="--alter --topic orders --partitions 4",
            expects=(),
        ),
        Step(
            does="alters topic properties",
            tool=CONFIGS,
            arguments="--entity-type topics --entity-name orders --alter"
            " --add-config segment.bytes=2000000,retention.ms=-1",
            expects=("Completed updating config for topic orders",),
        ),
        Step(
            does="describes topic properties with their synonyms",
            tool=CONFIGS,
            arguments="--entity-type topics --entity-name orders --describe --all",
            expects=(
                r"segment.bytes=2000000 .*DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000",
                r"DEFAULT_CONFIG:log.segment.bytes=1073741824",
                r"cleanup.policy=delete .*DEFAULT_CONFIG",
            ),
        ),
        Step(
            does="removes a topic property",
            tool=CONFIGS,
            arguments="--entity-type topics --entity-name orders --alter"
            " --delete-config segment.bytes",
            expects=("Completed updating config for topic orders",),
        ),
        Step(
            does="is told what a wrong property is",
            tool=CONFIGS,
            arguments="--entity-type topics --entity-name orders --alter"
            " --add-config retention.ms=soon",
            expects=("retention.ms",),
            fails=True,
        ),
        Step(
            does="describes the broker's configuration",
            tool=CONFIGS,
            arguments="--entity-type brokers --entity-name 1 --describe --all",
            expects=(r"log.dirs?=\S+ .*STATIC_BROKER_CONFIG", r"num.partitions=1"),
        ),
        Step(
            does="sets a log level",
            tool=CONFIGS,
            arguments="--entity-type broker-loggers --entity-name 1 --alter"
            " --add-config storage.local=DEBUG",
            expects=("Completed updating config for broker-logger 1",),
        ),
        Step(
            does="is told what a wrong log level is",
            tool=CONFIGS,
            arguments="--entity-type broker-loggers --entity-name 1 --alter"
            " --add-config storage.local=LOUD",
            expects=(r"storage.local='LOUD': expected one of TRACE, DEBUG",),
            fails=True,
        ),
        Step(
            does="describes log levels",
            tool=CONFIGS,
            arguments="--entity-type broker-loggers --entity-name 1 --describe",
            expects=("root=INFO", "storage.local=DEBUG"),
        ),
        Step(
            does="produces keyed lines",
            tool=PRODUCER,
            arguments="--topic orders --property parse.key=true --property key.separator=:",
            stdin="".join(f"key-{n}:value-{n}\n" for n in range(100)),
            expects=(),
        ),
        Step(
            does="consumes in a group",
            tool=CONSUMER,
            arguments="--topic orders --from-beginning --max-messages 100 --group readers"
            " --property print.key=true",
            expects=(r"key-0\tvalue-0", r"key-99\tvalue-99"),
        ),
        Step(
            does="counts offsets",
            tool=TOOLS + "GetOffsetShell",
            arguments="--topic orders",
            expects=(r"orders:0:\d+", r"orders:3:\d+"),
        ),
        Step(
            does="asks for the offsets of both tiers",
            tool=TOOLS + "GetOffsetShell",
            arguments="--topic orders --time earliest-local",
            expects=(r"orders:0:0",),
        ),
        Step(
            does="lists groups",
            tool=GROUPS,
            arguments="--list --state",
            expects=(r"readers\s+(Classic\s+)?Empty",),
        ),
        Step(
            does="describes the lag of a group",
            tool=GROUPS,
            arguments="--describe --group readers",
            expects=(r"readers\s+orders\s+0\s+\d+\s+\d+\s+0\s", "has no active members"),
        ),
        Step(
            does="resets the offsets of a group",
            tool=GROUPS,
            arguments="--reset-offsets --group readers --topic orders --to-earliest --execute",
            expects=(r"readers\s+orders\s+0\s+0",),
        ),
        Step(
            does="deletes offsets of a group",
            tool=GROUPS,
            arguments="--delete-offsets --group readers --topic orders",
            expects=(r"orders\s+0\s+Successful",),
        ),
        Step(
            does="deletes a group",
            tool=GROUPS,
            arguments="--delete --group readers",
            expects=("was successful",),
        ),
        Step(
            does="consumes in a group of KIP-848",
            tool=CONSUMER,
            arguments="--topic orders --from-beginning --max-messages 100 --group modern"
            " --consumer-property group.protocol=consumer",
            expects=("value-0", "value-99"),
        ),
        Step(
            does="produces and is told of every record",
            tool=TOOLS + "VerifiableProducer",
            arguments="--topic verified --max-messages 500 --throughput 1000 --value-prefix 7",
            expects=(r'"name":"tool_data".*"acked":500|"acked":500',),
        ),
        Step(
            does="consumes and tells of every record",
            tool=TOOLS + "VerifiableConsumer",
            arguments="--topic verified --group-id verified --max-messages 500"
            " --reset-policy earliest",
            expects=(r'"name":"records_consumed"', r'"name":"offsets_committed".*"success":true'),
        ),
        Step(
            does="produces as fast as it can",
            tool=TOOLS + "ProducerPerformance",
            arguments="--topic perf --num-records 20000 --record-size 1000 --throughput -1"
            " --producer-props bootstrap.servers={bootstrap} compression.type=lz4",
            bootstrap_option="",
            expects=(r"20000 records sent.*99\.9th",),
        ),
        Step(
            does="consumes as fast as it can",
            tool=TOOLS + "ConsumerPerformance",
            arguments="--topic perf --messages 20000",
            expects=(r"\d{4}-\d\d-\d\d.*, 20\d{3},",),
        ),
        Step(
            does="measures from end to end",
            tool=TOOLS + "EndToEndLatency",
            arguments="{bootstrap} perf2 200 all 100",
            bootstrap_option="",
            expects=(r"Percentiles: 50th = \d+",),
        ),
        Step(
            does="describes the log folders",
            tool=TOOLS + "LogDirsCommand",
            arguments="--describe --topic-list perf",
            expects=(r'"partition":"perf-0","size":\d{4,}', '"isFuture":false'),
        ),
        Step(
            does="moves a replica to another log folder",
            tool=TOOLS + "reassign.ReassignPartitionsCommand",
            arguments="--reassignment-json-file {folder}/move.json --execute",
            files=(
                (
                    "move.json",
                    '{{"version":1,"partitions":[{{"topic":"perf","partition":0,'
                    '"replicas":[1],"log_dirs":["{other_log_dir}"]}}]}}',
                ),
            ),
            expects=(r"Successfully started moving log directory to .* for replica perf-0",),
        ),
        Step(
            does="sees that the replica has moved",
            tool=TOOLS + "reassign.ReassignPartitionsCommand",
            arguments="--reassignment-json-file {folder}/move.json --verify",
            expects=("replica perf-0-1 completed successfully",),
        ),
        Step(
            does="elects leaders",
            tool=TOOLS + "LeaderElectionCommand",
            arguments="--election-type preferred --all-topic-partitions",
            expects=(),
        ),
        Step(
            does="deletes records",
            tool=TOOLS + "DeleteRecordsCommand",
            arguments="--offset-json-file {folder}/delete.json",
            files=(
                (
                    "delete.json",
                    '{{"version":1,"partitions":[{{"topic":"perf","partition":0,"offset":50}}]}}',
                ),
            ),
            expects=(r"partition: perf-0\s+low_watermark: 50",),
        ),
        Step(
            does="asks who produces",
            tool=TRANSACTIONS,
            arguments="describe-producers --topic perf --partition 0",
            expects=("ProducerId", r"(?m)^\d+\s+0\s"),
        ),
        *transaction_steps(),
        Step(
            does="deletes a topic",
            tool=TOPICS,
            arguments="--delete --topic placed",
            expects=(),
        ),
        Step(
            does="no longer lists it",
            tool=TOPICS,
            arguments="--describe --topic placed",
            expects=("Topic 'placed' does not exist",),
            fails=True,
        ),
    ]


def transaction_steps() -> Sequence[Step | Call]:
    """Transactions of both versions, and what administrators do with them."""
    return [
        Step(
            does="finds transaction version 2",
            tool=TOOLS + "FeatureCommand",
            arguments="describe",
            expects=(r"transaction.version\s.*SupportedMaxVersion: 2\s.*FinalizedVersionLevel: 2",),
        ),
        Step(
            does="checks a downgrade to transaction version 1",
            tool=TOOLS + "FeatureCommand",
            arguments="downgrade --feature transaction.version=1 --dry-run",
            expects=("transaction.version can be downgraded to 1.",),
        ),
        Step(
            does="disables transaction versions",
            tool=TOOLS + "FeatureCommand",
            arguments="disable --feature transaction.version",
            expects=("transaction.version was disabled.",),
        ),
        Step(
            does="produces in transactions of version 0",
            tool=TOOLS + "ProducerPerformance",
            arguments="--topic old-transfers --num-records 200 --record-size 100 --throughput 20000"
            " --transactional-id old-payer --transaction-duration-ms 10"
            " --producer-props bootstrap.servers={bootstrap}",
            bootstrap_option="",
            expects=("200 records sent",),
        ),
        Step(
            does="raises the level to transaction version 2",
            tool=TOOLS + "FeatureCommand",
            arguments="upgrade --feature transaction.version=2",
            expects=("transaction.version was upgraded to 2.",),
        ),
        Step(
            does="produces in transactions",
            tool=TOOLS + "ProducerPerformance",
            arguments="--topic transfers --num-records 2000 --record-size 100 --throughput 20000"
            " --transactional-id payer --transaction-duration-ms 10"
            " --producer-props bootstrap.servers={bootstrap}",
            bootstrap_option="",
            expects=("2000 records sent",),
        ),
        Step(
            does="copies in transactions, with the offsets of its group",
            tool=TOOLS + "TransactionalMessageCopier",
            arguments="--transactional-id copier --consumer-group copiers --input-topic transfers"
            " --input-partition 0 --output-topic copies --max-messages 2000"
            " --transaction-size 100 --broker-list {bootstrap}",
            bootstrap_option="",
            expects=(r'"stage":"ShutdownComplete".*"totalProcessed":2000',),
        ),
        Step(
            does="copies again, of which some is aborted at random",
            tool=TOOLS + "TransactionalMessageCopier",
            arguments="--transactional-id moody --consumer-group moody --input-topic transfers"
            " --input-partition 0 --output-topic moods --max-messages 2000"
            " --transaction-size 100 --enable-random-aborts --broker-list {bootstrap}",
            bootstrap_option="",
            expects=(r'"stage":"ShutdownComplete".*"remaining":0',),
        ),
        Step(
            does="consumes what was committed",
            tool=CONSUMER,
            arguments="--topic copies --isolation-level read_committed --from-beginning"
            " --max-messages 2000 --timeout-ms 30000",
            expects=("Processed a total of 2000 messages",),
        ),
        Step(
            does="lists transactional ids by a pattern",
            tool=TRANSACTIONS,
            arguments="list --transactional-id-pattern p.*r",
            expects=(r"(?m)^payer\s+1\s+\d+\s+CompleteCommit",),
            lacks=("copier",),
        ),
        Step(
            does="describes a transactional id",
            tool=TRANSACTIONS,
            arguments="describe --transactional-id copier",
            expects=(r"copier\s+\d+\s+\d+\s+CompleteCommit",),
        ),
        *terminating_steps(),
        Step(
            does="reads the state of transactions of both levels",
            tool=CONSUMER,
            arguments=f"--topic {TRANSACTION_TOPIC} --from-beginning --timeout-ms 5000"
            f" --formatter {TOOLS}consumer.TransactionLogMessageFormatter",
            expects=(
                logged("old-payer", 0, "CompleteCommit", r"\[\]", client_version=0),
                logged(
                    "copier",
                    1,
                    "PrepareCommit",
                    r'\[\{"topic":"__consumer_offsets","partitionIds":\[\d+\]\},'
                    r'\{"topic":"copies","partitionIds":\[0\]\}\]',
                    client_version=2,
                ),
                logged("copier", 1, "CompleteCommit", r"\[\]", client_version=2),
                logged("opener", 1, "CompleteAbort", r"\[\]", client_version=2),
                logged("opener", 1, "Empty", "null", client_version=2),
            ),
            lacks=("Could not read record",),
        ),
        Call(does="finds a tag of ours in that state", call=Clients.expect_log_ends_in_state),
        *hanging_steps(),
    ]


def logged(
    transactional_id: str, version: int, state: str, partitions: str, *, client_version: int
) -> str:
    """What Kafka's formatter prints of a record, with the client's version if it is not 0."""
    last = f',"clientTransactionVersion":{client_version}' if client_version else ""
    return (
        rf'"transactionalId":"{transactional_id}"\}}\}},"value":\{{"version":{version},"data":'
        rf'\{{"producerId":\d+,[^{{}}]*"transactionStatus":"{state}","transactionPartitions":'
        rf'{partitions},"transactionLastUpdateTimestampMs":\d+,'
        rf'"transactionStartTimestampMs":-?\d+{last}\}}'
    )


def terminating_steps() -> Sequence[Step | Call]:
    """A transaction that is open, until an administrator ends it."""
    return [
        Call(does="leaves a transaction open", call=Clients.leave_open),
        Step(
            does="lists what began longer ago than a time",
            tool=TRANSACTIONS,
            arguments="list --duration-filter 0",
            expects=(r"(?m)^opener\s+1\s+\d+\s+Ongoing",),
        ),
        Step(
            does="lists nothing that began an hour ago",
            tool=TRANSACTIONS,
            arguments="list --duration-filter 3600000",
            expects=("TransactionalId",),
            lacks=("opener",),
        ),
        Step(
            does="terminates a transactional id",
            tool=TRANSACTIONS,
            arguments="forceTerminateTransaction --transactionalId opener",
            expects=(),
        ),
        Step(
            # The tool goes on until its own InitProducerId succeeds, after the abort.
            does="sees that the terminated id is empty",
            tool=TRANSACTIONS,
            arguments="describe --transactional-id opener",
            expects=(r"opener\s+\d+\s+2\s+Empty",),
        ),
        Call(does="finds the producer of the open transaction fenced", call=Clients.expect_fenced),
    ]


def hanging_steps() -> Sequence[Step | Call]:
    """A transaction that its coordinator does not know, as of a producer whose request was late."""
    find = "find-hanging --broker-id 1"
    row = (
        r"(?m)^stuck\s+0\s+(?P<producer_id>\d+)\s+(?P<producer_epoch>\d+)"
        r"\s+(?P<coordinator_epoch>-?\d+)\s+(?P<start_offset>\d+)\s"
    )
    found_none = Step(
        does="finds no transaction that hangs",
        tool=TRANSACTIONS,
        arguments=find,
        expects=(r"Topic\s+Partition\s+ProducerId",),
        lacks=(r"(?m)^\S+\s+\d+\s+\d+\s",),
    )
    hangs = Call(does="leaves a transaction that hangs", call=Clients.leave_hanging)
    found = Step(
        does="finds the transaction that hangs", tool=TRANSACTIONS, arguments=find, expects=(row,)
    )
    return [
        found_none,
        verification(is_on=False),
        Call(does="makes a topic for transactions that hang", call=Clients.make_stuck),
        hangs,
        found,
        Step(
            does="aborts the transaction that hangs, by its start",
            tool=TRANSACTIONS,
            arguments="abort --topic stuck --partition 0 --start-offset {start_offset}",
            expects=(),
        ),
        found_none,
        hangs,
        found,
        Step(
            does="aborts the transaction that hangs, as on old brokers",
            tool=TRANSACTIONS,
            arguments="abort --topic stuck --partition 0 --producer-id {producer_id}"
            " --producer-epoch {producer_epoch} --coordinator-epoch {coordinator_epoch}",
            expects=(),
        ),
        found_none,
        verification(is_on=True),
        Step(
            does="finds no transaction to abort where none hangs",
            tool=TRANSACTIONS,
            arguments="abort --topic stuck --partition 0 --start-offset {start_offset}",
            expects=("Could not find any open transactions starting at offset",),
            fails=True,
        ),
    ]


def verification(*, is_on: bool) -> Step:
    """Without it a record opens a transaction in a partition that the coordinator does not know."""
    return Step(
        does=f"switches the verification of what hangs {'on' if is_on else 'off'}",
        tool=CONFIGS,
        arguments="--entity-type brokers --entity-default --alter"
        f" --add-config transaction.partition.verification.enable={str(is_on).lower()}",
        expects=("Completed updating default config",),
    )


class Session:
    """A broker, a folder, and the command line of a JVM."""

    def __init__(
        self,
        libraries: Path,
        broker: BrokerProcess,
        folder: Path,
        clients: Clients,
        *,
        names: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._broker = broker
        self._folder = folder
        self._clients = clients
        # What steps may name besides, and what the named groups of earlier ones matched.
        self._found = dict(names or {})
        self._java = [
            *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *java_options),
            *("-cp", f"{libraries}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
        ]

    def run(self, step: Step | Call) -> str:
        """Why the step failed; empty when it did not."""
        if isinstance(step, Step):
            return self._run_tool(step)
        try:
            step.call(self._clients)
        except AssertionError:
            return _tail(traceback.format_exc())
        return ""

    def _run_tool(self, step: Step) -> str:
        try:
            words = self._filled(step.arguments).split()
        except KeyError as missing:
            return f"no earlier step has found {missing}"
        for name, text in step.files:
            (self._folder / name).write_text(self._filled(text))
        command = [*self._java, step.tool]
        reach = [step.bootstrap_option, self._broker.bootstrap] if step.bootstrap_option else []
        # ClusterTool and TransactionsCommand want their action in the right place.
        if step.tool.endswith("ClusterTool"):
            command += words + reach
        else:
            command += reach + words
        try:
            result = subprocess.run(
                command,
                input=step.stdin,
                capture_output=True,
                text=True,
                timeout=STEP_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"it did not end within {STEP_SECONDS_MAX} s\n{_tail(_text(error.stdout))}"
        said = result.stdout + result.stderr
        if (result.returncode != 0) != step.fails and not (step.fails and "ERROR" in said):
            return f"exit code {result.returncode}\n{_tail(said)}"
        for pattern in step.expects:
            match = re.search(pattern, said)
            if match is None:
                return f"it did not print {pattern!r}\n{_tail(said)}"
            self._found |= match.groupdict()
        printed = [pattern for pattern in step.lacks if re.search(pattern, said)]
        return f"it printed {printed[0]!r}\n{_tail(said)}" if printed else ""

    def _filled(self, text: str) -> str:
        return text.format(
            bootstrap=self._broker.bootstrap,
            folder=self._folder,
            other_log_dir=(self._folder / "data2").absolute(),
            **self._found,
        )


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _tail(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return "\n".join(line[:300] for line in lines[-SHOWN_ON_FAILURE_LINES:])


def main(arguments: Sequence[str]) -> int:
    libraries = Path(arguments[0])
    wanted = [
        step
        for step in steps()
        if not arguments[1:]
        or any(word in f"{step.tool} {step.does}".lower() for word in arguments[1:])
    ]
    console = Console()
    with tempfile.TemporaryDirectory(prefix="strandline-interop-") as name:
        folder = Path(name)
        settings = {
            "log.dirs": f"{folder / 'data1'},{folder / 'data2'}",
            "group.initial.rebalance.delay.ms": "0",
            "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
        }
        with (
            BrokerProcess(folder, settings=settings) as broker,
            WireClient(broker.port) as client,
        ):
            session = Session(libraries, broker, folder, Clients(client))
            failure_count = carry_out(session, wanted, console)
            assert broker.running, broker.log_text()[-4000:]
            assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
    return 1 if failure_count else 0


def carry_out(session: Session, wanted: Sequence[Step | Call], console: Console) -> int:
    """Runs steps and prints what became of them; how many failed."""
    table = Table("tool", "does", "result", "s", box=box.SIMPLE_HEAD)
    failure_count = 0
    for step in wanted:
        began_s = time.monotonic()
        reason = session.run(step)
        tool = step.tool.rpartition(".")[2]
        if reason:
            failure_count += 1
            console.print(f"[red]{tool} {step.does}: {reason}", highlight=False)
        table.add_row(
            tool,
            step.does,
            "[red]failed" if reason else "ok",
            f"{time.monotonic() - began_s:.1f}",
        )
    console.print(table)
    console.print(f"{len(wanted) - failure_count} of {len(wanted)} steps did what they must")
    return failure_count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

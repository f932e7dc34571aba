"""docs/reference/protocol.md, from the table of the codec and ApiVersions; see doc_pages.py."""

from __future__ import annotations

from strandline.broker.protocol.schema.api import (
    EVERY_SPEC,
    NEVER_FLEXIBLE,
    ON_CONTROLLERS,
    SPECS,
    ApiSpec,
    api_name,
)

_INTRODUCTION = """\
# Protocol

<!-- Made by `make docs`. Do not edit. -->

For developers of clients, and for whoever checks whether a client works. The table lists the APIs
of the broker. It does not advertise others, and closes the connection on a request for one, as
Apache Kafka does. The ranges end where Apache Kafka 4.4's do. From the version in the last column
on, requests have compact lengths and tagged fields (KIP-482).

| API | key | versions | flexible |
| --- | --- | --- | --- |
"""

_NOTES = """
The broker serves Produce 0 to 2, which Kafka 4 advertises and refuses: it stores their messages as
a batch of v2 ([decision 3](../decisions/0003-wire-protocol.md)). Fetch 0 to 3 returns records in
the message formats of that time; these have no transaction markers, so the broker reads on behind
markers alone. The broker also serves the other versions that Kafka 4 dropped (KIP-896), such as
ListOffsets 0: clients from before Kafka 0.10 work.

AlterConfigs and IncrementalAlterConfigs change topics, groups, and those properties of brokers that
[configuration.md](configuration.md) calls dynamic; IncrementalAlterConfigs changes log levels too.
The broker reads the other properties at its start and refuses to alter them (INVALID_REQUEST). You
can turn `remote.storage.enable` on for a running topic, and off again together with
`remote.log.delete.on.disable=true` (KIP-950). The APIs for elections and reassignments answer as a
single broker: it needs no election, and a partition can be assigned to this broker alone. In a
cluster the controller answers them.
AlterReplicaLogDirs moves partitions between the log folders of the broker; an interrupted move
continues after a restart.

On a listener without SASL every client is the user `ANONYMOUS`, as in Kafka; there the broker
answers SaslHandshake and SaslAuthenticate with ILLEGAL_SASL_STATE. Quotas of the entity `ip` take
addresses only, no host names. UpdateFeatures changes the level of `transaction.version` (0, 1 or 2,
by default 2); of other features it accepts the present level and no other. UnregisterBroker refuses
the only broker.

Not supported yet: two-phase commit (KIP-939), delegation tokens and TLS. SASL has PLAIN, SCRAM and
OAUTHBEARER. With `authorizer.class.name` set, each request needs the rights that it needs in Apache
Kafka 4.3. Without, the broker answers requests for ACLs with SECURITY_DISABLED, and those for
delegation tokens with DELEGATION_TOKEN_AUTH_DISABLED, as a Kafka without a secret for tokens does.

## Where answers differ from Apache Kafka's

Each difference is intentional:

* **ListOffsets** -3, the record with the largest timestamp, searches both tiers, and only existing
  records; Kafka's searches all records on the local disk. If the archive cannot be read, a lookup
  by time gets KAFKA_STORAGE_ERROR, which clients retry, instead of UNKNOWN_SERVER_ERROR.
* **Fetch** from an archive whose store is unreachable gets no records and no error, as at the end
  of its wait, for the first five seconds. So does a read beyond
  `remote.log.reader.max.pending.tasks`. Then, or after 30 seconds without any answer of the store,
  it gets KAFKA_STORAGE_ERROR, as at once if an object is missing, damaged, in an archive class or
  refused. A partition with
  an error still gets its high watermark, last stable offset and log start, where the broker knows
  them. With the current leader (KIP-951, from 16 on) comes no address: it is the broker that was
  asked. For a topic with `compression.type=zstd`, Fetch before 10 gets
  UNSUPPORTED_COMPRESSION_TYPE, as in Kafka before 4. From the archive it gets the batches of zstd
  decompressed.
* **Produce** accepts a batch whose base offset is not 0. Of records it reads
  lengths and times only, where the topic does not require more; in the first small batches
  of a connection they are read whole
  ([decision 5](../decisions/0005-append.md)): Kafka also refuses a wrong key or header in them, and
  renumbers the offsets of compressed ones. A batch that decompresses to more than 512 MiB gets
  MESSAGE_TOO_LARGE. It refuses a batch that declares log append time; Kafka accepts it if the
  topic has CreateTime. For such a topic, the answer to a repeated batch has no append time;
  Kafka returns the timestamp of the first one.
* **Transactions**: the pattern of ListTransactions is an RE2 expression, in Kafka a Java one:
  look-ahead and back references get INVALID_REGULAR_EXPRESSION. InitProducerId with an unknown
  older epoch of a producer id whose epochs are used up gets PRODUCER_FENCED; Kafka answers
  UNKNOWN_SERVER_ERROR. [Decision 24](../decisions/0024-transactions.md) has the differences that
  come from coordinator and partitions in one process.
* **Groups**: the broker does not keep a group of which it only refused a join; Kafka keeps it,
  empty, until a client deletes it. OffsetFetch returns no offset of a deleted topic, nor of one
  that had the name before; Kafka does so until it has removed the offset. As in Kafka, the record
  of a commit with its own retention (OffsetCommit 2 to 4) lacks the topic's id: a broker that is
  killed within a second after the topic was deleted and created again takes it for one of the new
  topic.
* **CreateTopics** refuses topics from the first one on with which the request exceeds 10,000
  partitions; Kafka refuses all topics of such a request.
* **DeleteRecords**: the broker answers when the new log start is synced to the disk: no crash
  reverts it.
* **Configurations**: compacted topics may be tiered
  ([decision 18](../decisions/0018-compaction.md)). `remote.copy.lag.ms` alone delays copies also
  where local retention has no limit in bytes; Kafka copies at once then. The broker refuses a limit
  in bytes below -1, digits of other scripts, and an unknown property of the broker. It also refuses
  `transaction.state.log.segment.bytes` and `offsets.topic.segment.bytes` below 1 MiB; Kafka then
  fails to create the topic. `__transaction_state` has no `min.insync.replicas` of its own: one
  broker never meets Kafka's 2, and tools would report that. Every topic property names as its last
  synonym the broker property of its default; Kafka omits some.
"""


_CONTROLLERS = """
## On a controller's listener

A controller in a process of its own (`process.roles=controller`) serves these, as Apache Kafka's
controllers do: brokers ask the ones that no other listener has, and tools of Kafka the others, with
`--bootstrap-controller`. The requests of brokers need ClusterAction on the cluster.

| API | key | versions | flexible |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The whole page."""
    lines = [_line(SPECS[key]) for key in sorted(SPECS)]
    of_controllers = [_line(EVERY_SPEC[key]) for key in sorted(ON_CONTROLLERS)]
    return _INTRODUCTION + "".join(lines) + _NOTES + _CONTROLLERS + "".join(of_controllers)


def _line(row: ApiSpec) -> str:
    flexible = "never" if row.flexible_from == NEVER_FLEXIBLE else f"{row.flexible_from}+"
    return f"| {api_name(row.key)} | {int(row.key)} | {row.supported} | {flexible} |\n"

"""docs/protocol.md, from the table that the codec and ApiVersions read; see doc_pages.py."""

from __future__ import annotations

from strandline.broker.protocol.schema.api import protocol_rows

_INTRODUCTION = """\
# Protocol

<!-- Made by `make docs`. Do not edit. -->

What the broker speaks. An API that is not in this table is not advertised, and a request for it
closes the connection, as in Apache Kafka. The ranges end where Apache Kafka 4.3's do. From the
version in the last column on, requests have compact lengths and tagged fields (KIP-482).

| API | key | versions | flexible |
| --- | --- | --- | --- |
"""

_NOTES = """
Produce 0 to 2, which Kafka 4 advertises and refuses, are served: their messages are stored as a
batch of v2 ([decision 3](decisions/0003-wire-protocol.md)). Fetch 0 to 3 gives records back in
the message formats of that time. The other versions that Kafka 4 dropped (KIP-896), such as
ListOffsets 0, are served too: clients from before Kafka 0.10 work.

AlterConfigs and IncrementalAlterConfigs change topics, and those keys of brokers that
[configuration.md](configuration.md) calls dynamic; the other keys are read at the start and refused
with INVALID_REQUEST. `remote.storage.enable` can be turned on for a running topic, and off again
together with `remote.log.delete.on.disable=true` (KIP-950). The APIs for elections and
reassignments give the answers of a single broker: no election is needed, and a partition can be
assigned to this broker alone. AlterReplicaLogDirs moves partitions between the log folders of the
broker; a move that a restart interrupts goes on.

On a listener without SASL everybody is the user `ANONYMOUS`, as in Kafka; there SaslHandshake and
SaslAuthenticate are answered with ILLEGAL_SASL_STATE. Quotas of the entity `ip` take addresses
only, no host names. UpdateFeatures accepts the level that a feature has and no other;
UnregisterBroker refuses the one broker there is.

Not served yet: transactions, ACLs, delegation tokens and TLS. Of SASL there are PLAIN and SCRAM.
What asks for ACLs is answered with SECURITY_DISABLED, as by a Kafka without an authorizer.
Transactional ids are refused at once with INVALID_REQUEST; in FindCoordinator 1 and 2 with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as librdkafka asks again for ever after anything else.

## Where answers differ from Apache Kafka's

Each on purpose:

* **ListOffsets** -3, the record with the largest timestamp, looks through both tiers, and only at
  records that are not deleted; Kafka's looks at all that is on the local disk. A lookup by time for
  which the archive cannot be read now gets KAFKA_STORAGE_ERROR, which clients repeat, and not
  UNKNOWN_SERVER_ERROR.
* **Fetch** from an archive that cannot be read now is answered without records and without an
  error, as when its time is over; so is a read beyond `remote.log.reader.max.pending.tasks`. A
  partition that is answered with an error still gets its high watermark, last stable offset and log
  start, where they are known. A topic with `compression.type=zstd` is refused to Fetch before 10
  with UNSUPPORTED_COMPRESSION_TYPE, as Kafka did before 4.
* **Produce** takes a batch whose base offset is not 0, and reads no records of topics that do not
  ask for it, but for the first batches of a connection
  ([decision 5](decisions/0005-append.md)); so of the max timestamps that are wrong
  it corrects those below the first record's. A batch that says its timestamps are the broker's is
  refused; Kafka takes it where the topic has CreateTime. There a repeated batch is answered without
  an append time; Kafka tells the timestamp of the first one.
* **Groups** that only a refused join asked for are not kept; Kafka's stay, empty, until somebody
  deletes them.
* **CreateTopics** refuses from the first topic on with which the request passes 10,000 partitions;
  Kafka refuses all topics of such a request.
* **DeleteRecords** is answered when the new log start is synced to the disk: no crash takes it
  back.
* **Configurations**: compacted topics may be tiered
  ([decision 18](decisions/0018-compaction.md)). `remote.copy.lag.ms` alone delays
  copies also where local retention has no limit in bytes; Kafka copies at once then. A limit in
  bytes below -1, digits of other scripts, and a key of the broker that nobody knows are refused.
  Every property names as its last synonym the key whose default it has; Kafka leaves some out.
"""


def render() -> str:
    """The whole page."""
    lines = [
        f"| {row.name} | {row.key} | {row.supported} | {row.flexible} |\n"
        for row in protocol_rows()
    ]
    return _INTRODUCTION + "".join(lines) + _NOTES

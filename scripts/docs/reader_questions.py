"""What readers of the pages want to know: an operator at night, an analyst, a new contributor.

Each question is what its reader types: in a reader's words, not in those of the heading. It has the
section with the answer, and a piece of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """`place` is a page below docs/, or CONTRIBUTING.md, with the anchor of a heading."""

    asked: str
    place: str
    answer: str


OPERATOR = (
    Question(
        "The machine is gone: what do I do, and how long am I down?",
        "how-to/restore.md#fail-over-to-another-machine",
        "The downtime for producers is",
    ),
    Question(
        "Copying fails with AccessDenied.",
        "runbooks/store.md#accessdenied--credentials-or-policy",
        "name the missing right",
    ),
    Question(
        "The alert on waiting copies has the reason gap.",
        "runbooks/copying.md#copying-has-stopped--gap-overlap-or-fenced",
        "run DeleteRecords up to the local log start",
    ),
    Question(
        "The disk is 99 % full.",
        "runbooks/disk.md#log-folder-full-append-failed--disk-full",
        "Free a few MiB on this volume",
    ),
    Question(
        "StrandlineCopyFails fired: what is that?",
        "runbooks/store.md#tiering-does-not-succeed--copying-fails-with-an-error",
        "in the runbook of the `kind`",
    ),
    Question(
        "The machine of a systemd unit lost its disk: what do I type?",
        "how-to/restore.md#restore-under-systemd",
        "systemctl start strandline",
    ),
    Question(
        "My consumers cannot wait for a restore.",
        "how-to/restore.md#consumers-cannot-wait-read-from-a-replica",
        "group reset-offsets billing",
    ),
    Question(
        "What is this line: log folder full: appends are refused until there is room",
        "runbooks/disk.md#log-folder-full-append-failed--disk-full",
        "Appends to this disk's partitions",
    ),
    Question(
        "How do I run it as a service?",
        "how-to/systemd.md#install-the-unit",
        "systemctl enable --now strandline",
    ),
    Question(
        "Which IAM policy does the broker need?",
        "how-to/bucket.md#iam-policy-for-the-broker",
        '"s3:AbortMultipartUpload"',
    ),
    Question(
        "How do I encrypt the connections of clients?",
        "how-to/secure.md#tls-encrypt-the-connections-of-clients",
        "ssl.keystore.location=/etc/strandline/tls/broker.pem",
    ),
    Question(
        "How much RAM does it need?",
        "explanation/sizing.md#memory",
        "Give this broker 2 GB",
    ),
    Question(
        "How do I roll back an upgrade?",
        "how-to/upgrade.md#roll-back-an-upgrade",
        "install the older release on the same folders",
    ),
    Question(
        "Is it highly available?",
        "explanation/durability.md#high-availability",
        "A lone broker has none",
    ),
    Question(
        "How do I change the retention of a topic?",
        "how-to/run.md#change-the-retention-of-a-topic-delete-old-records",
        "see what a limit would delete",
    ),
    Question(
        "How do I rotate a password or the credentials of S3?",
        "how-to/secure.md#rotate-a-password-or-the-credentials-of-s3",
        "the next login needs it",
    ),
    Question(
        "Which ports does it open, and what do I probe?",
        "how-to/run.md#ports-and-health-checks",
        "it serves clients",
    ),
    Question(
        "I get a new machine, and the old disk is intact.",
        "how-to/restore.md#move-a-broker-to-another-machine",
        "move it to the new machine",
    ),
    Question(
        "Does exactly once work, and what do I set in my application?",
        "how-to/groups.md#exactly-once-what-to-set-in-each-client",
        "processing.guarantee=exactly_once_v2",
    ),
    Question(
        "A customer wants to be forgotten: how do I erase their records?",
        "how-to/run.md#erase-the-values-of-one-key",
        "write a record with the key and a null value",
    ),
    Question(
        "We move to another bucket: how?",
        "how-to/bucket.md#move-the-archive-to-another-bucket",
        "aws s3 sync",
    ),
    Question(
        "How do I archive a topic that exists already?",
        "how-to/run.md#archive-an-existing-topic",
        "remote.storage.enable=true",
    ),
    Question(
        "I have a second disk: how do I add it?",
        "how-to/move-partition.md#add-a-disk",
        "at the end of `log.dirs`",
    ),
    Question(
        "How do I rehearse a restore while the broker runs?",
        "how-to/restore.md#rehearse-a-restore",
        "log.dirs=/var/tmp/rehearsal",
    ),
    Question(
        "How do I delete a topic, and what becomes of its archive?",
        "how-to/run.md#delete-a-topic-and-its-archive",
        "strandline topic delete orders",
    ),
    Question(
        "Is anything encrypted at rest?",
        "how-to/secure.md#encryption-in-the-bucket-and-on-the-disk",
        "the bucket's default applies",
    ),
    Question(
        "How far is archiving behind?",
        "how-to/monitor.md#how-far-archiving-is-behind",
        "`to be copied`",
    ),
    Question(
        "Who may read one topic of the bucket, and no other?",
        "how-to/bucket.md#iam-policy-for-readers-of-one-topic",
        "topics/orders-ID/*",
    ),
    Question(
        "Which files does the broker write?",
        "how-to/run.md#files-that-the-broker-writes",
        "`strandline-metadata`",
    ),
)
ANALYST = (
    Question(
        "Which Spark, Python and Java?",
        "reference/requirements.md#requirements-linux-python-java-and-spark",
        "17, 21 or 25",
    ),
    Question(
        "How do I install it on a cluster?",
        "how-to/spark-cluster.md#on-a-cluster",
        "--py-files",
    ),
    Question(
        "How do I query a topic with Spark?",
        "how-to/query-with-spark.md#query-a-topic-with-spark",
        'spark.read.format("strandline")',
    ),
    Question(
        "And with DuckDB?",
        "how-to/query-without-spark.md#scan-a-topic",
        "duckdb.connect()",
    ),
    Question(
        "How do JSON and Avro values become columns?",
        "how-to/decode-values.md#json",
        "valueSchema",
    ),
    Question(
        "What does a query over one day of five years read?",
        "explanation/pruning.md#what-is-not-read",
        "segments by the manifest",
    ),
    Question(
        "How do I export to Parquet?",
        "how-to/query-without-spark.md#export-to-parquet",
        "format parquet",
    ),
    Question(
        "How do I get the latest value of each key?",
        "explanation/pruning.md#the-latest-value-of-each-key",
        "arg_max_null(value",
    ),
    Question(
        "Is it faster than Parquet?",
        "explanation/comparison.md#is-a-query-as-fast-as-over-parquet",
        "times Parquet's rate",
    ),
    Question(
        "What does a stream guarantee, and what does retention do to it?",
        "how-to/stream.md#what-a-stream-guarantees",
        "Every record arrives exactly once",
    ),
    Question(
        "How do I find the records of one key?",
        "how-to/query-without-spark.md#look-for-one-key",
        '("key", "==", "AA")',
    ),
    Question(
        "The schema of the values changes over the years: what then?",
        "how-to/decode-values.md#values",
        "Avro returns the field's default",
    ),
    Question(
        "My bucket is in MinIO: where do I say so?",
        "how-to/query-without-spark.md#minio-and-other-endpoints",
        '"s3.endpoint.url"',
    ),
    Question(
        "How do I read only what is new?",
        "how-to/query-without-spark.md#only-new-rows",
        '"startingOffsets"',
    ),
    Question(
        "Somebody deleted and created a topic: what does a query read?",
        "how-to/query-without-spark.md#deleted-topics",
        "the new topic alone",
    ),
)
CONTRIBUTOR = (
    Question(
        "What must I install?",
        "contributing/recipes.md#what-must-i-install",
        "`make`, `bash`, `python3`",
    ),
    Question(
        "How long does the quick check take?",
        "contributing/recipes.md#how-long-do-the-targets-take",
        "`make check`",
    ),
    Question(
        "How do I run one test?",
        "contributing/recipes.md#run-one-test",
        "-m pytest tests/",
    ),
    Question(
        "Where is the code of Fetch?",
        "contributing/recipes.md#where-is-the-code-of-fetch",
        "broker/handlers/fetch/",
    ),
    Question(
        "Which files does a new property need?",
        "contributing/recipes.md#a-new-property",
        "broker/config/broker_config.py",
    ),
    Question(
        "And a new metric?",
        "contributing/recipes.md#a-new-metric",
        "broker/telemetry/families.py",
    ),
    Question(
        "And a new version of an API?",
        "contributing/recipes.md#a-new-version-of-an-api",
        "broker/protocol/schema/api.py",
    ),
    Question(
        "Which imports may I use?",
        "explanation/architecture.md#floors-and-rooms",
        "a part imports only parts below it",
    ),
    Question(
        "How do I profile a broker?",
        "contributing/recipes.md#profile-a-broker",
        "py-spy record",
    ),
    Question(
        "A broker hangs: how do I debug it?",
        "contributing/recipes.md#debug-a-broker",
        "py-spy dump",
    ),
    Question(
        "Is there a first task for me?",
        "contributing/recipes.md#find-a-first-task",
        "no public list of issues",
    ),
    Question(
        "How do I send a pull request, who reviews it, and how do we speak to each other?",
        "CONTRIBUTING.md#pull-requests-review-and-conduct",
        "Send a change as a pull request",
    ),
    Question(
        "How do I report a vulnerability?",
        "contributing/recipes.md#report-a-vulnerability",
        "SECURITY.md",
    ),
    Question(
        "How do I change a stored format?",
        "contributing/recipes.md#a-change-of-a-stored-format",
        "tests/system/restart/formats",
    ),
    Question(
        "Where are the tests of a module?",
        "contributing/recipes.md#run-one-test",
        "`tests/unit/` mirrors",
    ),
    Question(
        "How do I add a dependency?",
        "contributing/recipes.md#a-new-dependency",
        "run `make lock`",
    ),
    Question(
        "How do I write a test that needs S3?",
        "contributing/recipes.md#a-test-that-needs-s3",
        "`s3_bucket`",
    ),
    Question(
        "A system test failed: where is the log of its broker?",
        "contributing/recipes.md#the-log-of-a-broker-in-a-failed-test",
        "broker.log",
    ),
    Question(
        "How do I run the broker with my change?",
        "contributing/recipes.md#run-your-change",
        ".venv/bin/strandline serve",
    ),
    Question(
        "Which files does a new alert need?",
        "contributing/recipes.md#a-new-alert",
        "alerts.test.yml",
    ),
    Question(
        "How do I make a release?",
        "contributing/recipes.md#release-a-version",
        "Chart.yaml",
    ),
    Question(
        "How do I preview the pages?",
        "CONTRIBUTING.md#pages-generate-and-preview",
        "`make site`",
    ),
    Question(
        "Under which licence is my contribution?",
        "CONTRIBUTING.md#licence-of-contributions",
        "section 5",
    ),
)
QUESTIONS = (*OPERATOR, *ANALYST, *CONTRIBUTOR)

"""The table of all metrics on /metrics, read by collector, documentation and tests.

Names are those of Kafka with the JMX exporter's usual rules (`lowercaseOutputName`), so that
dashboards and alerts for Kafka work; metrics that Kafka lacks begin with `strandline_`, those of
every process with `process_`, and group lag has the names of kafka_exporter.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.telemetry.exposition import Family, Kind

_C, _G, _S = Kind.COUNTER, Kind.GAUGE, Kind.SUMMARY
_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_REQUEST = ("request",)
_GROUP_PARTITION = ("consumergroup", "topic", "partition")


def _family(name: str, kind: Kind, text: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels)


def _topic_counter(name: str, text: str) -> Family:
    text = f"{text} Without a topic: all of them, also those that are deleted."
    return _family(f"kafka_server_brokertopicmetrics_{name}_total", _C, text, _TOPIC)


def _request_time(name: str, text: str) -> Family:
    text = f"{text} Quantiles of the last one to two minutes, to a factor of two."
    return _family(f"kafka_network_requestmetrics_{name}", _S, text, _REQUEST)


REQUESTS = (
    _family(
        "kafka_network_requestmetrics_requests_total",
        _C,
        "Requests, by API and version.",
        ("request", "version"),
    ),
    _family(
        "kafka_network_requestmetrics_errors_total",
        _C,
        "Error codes in answers, by API; NONE counts answers without any.",
        ("request", "error"),
    ),
    _request_time("totaltimems", "Ms from taking a request up to its answer being ready."),
    _request_time("requestqueuetimems", "Ms that a request lay in its buffer while others ran."),
    _request_time("localtimems", "Ms that the broker worked on a request."),
    _request_time(
        "remotetimems",
        "Ms that a request waited: for records, an fsync, the object store, members.",
    ),
    _family(
        "kafka_network_requestmetrics_throttletimems",
        _S,
        "Ms for which a quota throttled clients.",
        _REQUEST,
    ),
    _family("kafka_network_requestmetrics_requestbytes", _S, "Bytes of requests.", _REQUEST),
    _family("kafka_network_requestmetrics_responsebytes", _S, "Bytes of answers.", _REQUEST),
    _family(
        "strandline_requests_refused_total",
        _C,
        "Requests that were malformed or of an unsupported version: the broker closed their"
        " connections.",
    ),
)

CONNECTIONS = (
    _family("kafka_server_socket_server_metrics_connection_count", _G, "Open connections."),
    _family(
        "kafka_server_socket_server_metrics_connection_creation_total",
        _C,
        "Connections that were accepted.",
    ),
    _family(
        "strandline_connections_refused_total",
        _C,
        "Connections that the broker closed at once: max.connections or max.connections.per.ip.",
    ),
    _family(
        "strandline_connections_closed_total",
        _C,
        "Connections that the broker closed: idle, or stalled in a request or an answer.",
        ("reason",),
    ),
    _family("strandline_connections_muted", _G, "Connections that a quota mutes."),
    _family("strandline_receive_buffer_bytes", _G, "Memory of all receive buffers."),
)

TOPICS = (
    _topic_counter("messagesin", "Records appended."),
    _topic_counter("bytesin", "Bytes of batches appended."),
    _topic_counter("bytesout", "Bytes of batches sent to consumers, from both tiers."),
    _topic_counter("totalproducerequests", "Batches that producers sent."),
    _topic_counter(
        "failedproducerequests",
        "Batches with invalid content, or that the broker could not write.",
    ),
    _topic_counter("totalfetchrequests", "Reads of partitions for consumers."),
    _topic_counter("failedfetchrequests", "Reads that failed because of the broker or its disk."),
    _topic_counter("remotefetchrequests", "Reads that needed the object store."),
    _topic_counter("remotefetchbytes", "Bytes of batches read from the object store."),
    _topic_counter("remotefetcherrors", "Reads from the object store that failed."),
    _topic_counter("remotecopybytes", "Bytes archived and committed."),
    _topic_counter("remotecopyrequests", "Segments archived and committed."),
    _topic_counter("remotecopyerrors", "Attempts to archive that failed."),
    _topic_counter("remotedeleterequests", "Segments deleted in the archive."),
    _topic_counter("remotedeleteerrors", "Attempts to delete in the archive that failed."),
)

TIERS = (
    _family(
        "kafka_server_brokertopicmetrics_remotecopylagbytes",
        _G,
        "Bytes of closed segments that are not archived yet; none while copying is turned off.",
        _TOPIC,
    ),
    _family(
        "kafka_server_brokertopicmetrics_remotecopylagsegments",
        _G,
        "Closed segments that are not archived yet; none while copying is turned off.",
        _TOPIC,
    ),
    _family(
        "kafka_server_brokertopicmetrics_remotedeletelagbytes",
        _G,
        "Bytes of unreferenced objects in the archive that wait for deletion: of expired"
        " segments, and of replaced objects.",
        _TOPIC,
    ),
    _family(
        "kafka_server_brokertopicmetrics_remotedeletelagsegments",
        _G,
        "Expired segments in the archive that wait for deletion.",
        _TOPIC,
    ),
    _family(
        "kafka_server_brokertopicmetrics_remotelogsizebytes", _G, "Bytes in the archive.", _TOPIC
    ),
    _family(
        "kafka_server_brokertopicmetrics_remotelogmetadatacount",
        _G,
        "Segments in the archive.",
        _TOPIC,
    ),
    _family(
        "strandline_remote_copy_failing_seconds",
        _G,
        "Seconds for which archiving a partition has failed, with the kind of the last error;"
        " absent otherwise.",
        ("topic", "partition", "error"),
    ),
    _family(
        "strandline_remote_delete_failing_seconds",
        _G,
        "Seconds for which deleting in the archive has failed; absent otherwise.",
        ("topic", "partition", "error"),
    ),
    _family(
        "strandline_remote_copy_waiting_segments",
        _G,
        "Closed segments that are not archived, by reason: `next` and `queued` wait for their"
        " copy; `gap`, `overlap` and `fenced` need an operator.",
        ("topic", "reason"),
    ),
    _family("strandline_remote_up", _G, "1 if the object store answers, 0 if it is unreachable."),
    _family(
        "strandline_remote_writes_refused_seconds",
        _G,
        "Seconds for which the object store has accepted no write since the start, with the"
        " kind of error (`AccessDenied`: it is forbidden, `StoreFull`: there is no room); absent"
        " otherwise.",
        ("error",),
    ),
    _family(
        "strandline_remote_conditions_atomic",
        _G,
        "0 if more than one of several concurrent conditional writes succeeded at the start:"
        " the archive is safe with this broker alone. 1 if just one did.",
    ),
    _family(
        "strandline_remote_archive_owned",
        _G,
        "1 if this broker owns the archive; 0 until it knows that, and once another broker owns"
        " it.",
    ),
    _family(
        "strandline_metadata_mirror_lag",
        _G,
        "Changes of topics and configurations that are not in the bucket yet.",
    ),
    _family(
        "strandline_remote_deleted_objects_total",
        _C,
        "Objects outside of topics that were deleted in the bucket, and that the broker writes"
        " again: `cluster` is cluster.json, `metadata` and `groups` are the objects of those"
        " folders.",
        ("object",),
    ),
    _family(
        "strandline_remote_requests_total",
        _C,
        "Requests to the object store, attempts included.",
        ("operation",),
    ),
    _family(
        "strandline_remote_failed_attempts_total",
        _C,
        "Attempts of requests to the object store that failed.",
    ),
    _family(
        "strandline_remote_throttled_seconds_total",
        _C,
        "Seconds for which remote.log.manager.*.max.bytes.per.second throttled copies and fetches.",
        ("what",),
    ),
    _family("strandline_cold_cache_bytes", _G, "Memory of chunks of archived segments."),
    _family("strandline_cold_running_downloads", _G, "Chunks whose download is under way."),
    _family("strandline_cold_index_bytes", _G, "Memory of indexes of archived segments."),
    _family(
        "strandline_cold_index_evictions_total",
        _C,
        "Indexes dropped because of remote.log.index.file.cache.total.size.bytes.",
    ),
    _family(
        "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent",
        _G,
        "Idle part of the copier's pool, 0 to 1.",
    ),
    _family(
        "kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize",
        _G,
        "Requests for readers that wait for a thread of remote.log.reader.threads.",
    ),
    _family(
        "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent",
        _G,
        "Idle part of the readers' pool, 0 to 1.",
    ),
    _family(
        "kafka_server_delayedremotefetchmetrics_expires_total",
        _C,
        "Fetches whose remote.fetch.max.wait.ms expired before all their archived records were"
        " there. Their downloads continued.",
    ),
    _family(
        "kafka_server_delayedremotelistoffsetsmetrics_expires_total",
        _C,
        "Lookups by time that got REQUEST_TIMED_OUT, by partition: the client's timeout or"
        " remote.list.offsets.request.timeout.ms expired.",
    ),
    _family(
        "strandline_remote_pool_size",
        _G,
        "Jobs that may run at a time: remote.log.manager.copier.thread.pool.size,"
        " remote.log.manager.expiration.thread.pool.size, remote.log.reader.threads.",
        ("pool",),
    ),
    _family(
        "strandline_cold_chunks_total",
        _C,
        "Chunks that readers requested, by their place: memory, download under way, disk,"
        " object store.",
        ("found",),
    ),
    _family("strandline_cold_downloaded_bytes_total", _C, "Bytes fetched for readers."),
    _family(
        "strandline_cold_failures_total",
        _C,
        "Downloads that failed or were damaged (corrupt), and reads that failed because an"
        " object that a manifest names is missing, corrupt, in an archive class (archived) or"
        " refused (denied).",
        ("reason",),
    ),
    _family(
        "strandline_cold_limit_bytes_per_second",
        _G,
        "Present limit of all cold reads, so that live traffic does not wait; 0: no limit,"
        " because there is no live traffic. Below"
        " strandline.remote.fetch.yield.floor.bytes.per.second the broker waits for a core.",
    ),
    _family(
        "strandline_cold_lateness_seconds_max",
        _G,
        "Wait of the event loop above which the broker throttles cold reads:"
        " strandline.remote.fetch.yield.ms, or 1.3 times the wait without them.",
    ),
    _family(
        "strandline_cold_held_answers",
        _G,
        "Answers from the archive that wait for live traffic.",
    ),
    _family(
        "strandline_cold_held_seconds_total",
        _C,
        "Seconds during which answers from the archive waited for live traffic.",
    ),
    _family(
        "strandline_cold_limit_cuts_total",
        _C,
        "Number of times that the broker lowered the limit of cold reads because live traffic"
        " waited too long.",
    ),
)

PARTITIONS = (
    _family("kafka_log_log_size", _G, "Bytes on the local disk.", _PARTITION),
    _family("kafka_log_log_numlogsegments", _G, "Segments on the local disk.", _PARTITION),
    _family("kafka_log_log_logstartoffset", _G, "First offset, in either tier.", _PARTITION),
    _family("kafka_log_log_logendoffset", _G, "Next offset that a record gets.", _PARTITION),
    _family(
        "kafka_log_log_retentionsizeinpercent",
        _G,
        "Bytes in percent of retention.bytes; 0 without such a limit, and for tiered topics."
        " Above 100 segments wait for deletion.",
        _PARTITION,
    ),
    _family(
        "kafka_log_remote_remotelogmanager_retentionsizeinpercent",
        _G,
        "For tiered topics, bytes in both tiers in percent of retention.bytes; bytes in both"
        " count once.",
        _PARTITION,
    ),
    _family(
        "kafka_log_remote_remotelogmanager_localretentionsizeinpercent",
        _G,
        "For tiered topics, bytes on the local disk in percent of local.retention.bytes.",
        _PARTITION,
    ),
    _family(
        "strandline_log_tier_bytes",
        _G,
        "Bytes per tier; bytes in both tiers count in both.",
        ("topic", "partition", "tier"),
    ),
    _family(
        "kafka_log_logcleanermanager_max_dirty_percent",
        _G,
        "Dirty part of the compacted log that needs compaction most.",
    ),
    _family(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        _G,
        "Ms since the cleaner last looked for something to compact.",
    ),
    _family(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        _G,
        "Compacted logs that the cleaner skips until the next start; the log says why.",
    ),
    _family("kafka_log_logcleanermanager_uncleanable_bytes", _G, "Dirty bytes of those logs."),
    _family(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        _G,
        "Seconds since max.compaction.lag.ms expired, for the log that has waited longest.",
    ),
    _family(
        "kafka_log_logcleaner_max_buffer_utilization_percent",
        _G,
        "Percent of log.cleaner.dedupe.buffer.size that the last compaction used.",
    ),
    _family(
        "kafka_log_logcleaner_max_clean_time_secs",
        _G,
        "Seconds that the last compaction of a log took.",
    ),
    _family("strandline_cleaner_cleanings_total", _C, "Compactions of logs."),
    _family("strandline_cleaner_read_bytes_total", _C, "Bytes read by compaction, in both passes."),
    _family("strandline_cleaner_written_bytes_total", _C, "Bytes written by compaction."),
)

REPLICAS = (
    _family(
        "kafka_server_replicamanager_partitioncount", _G, "Partitions that this broker serves."
    ),
    _family("kafka_server_replicamanager_leadercount", _G, "Partitions that this broker leads."),
    _family(
        "kafka_server_replicamanager_underreplicatedpartitions",
        _G,
        "Partitions with fewer replicas in sync than they have.",
    ),
    _family(
        "kafka_server_replicamanager_underminisrpartitioncount",
        _G,
        "Partitions with fewer replicas in sync than they need for acks=all.",
    ),
    _family(
        "kafka_server_replicamanager_offlinereplicacount",
        _G,
        "Partitions that the broker does not serve because their folder failed.",
    ),
    _family(
        "kafka_controller_kafkacontroller_activecontrollercount", _G, "1: this broker decides."
    ),
    _family(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        _G,
        "Partitions that no broker serves.",
    ),
    _family("kafka_controller_kafkacontroller_globaltopiccount", _G, "Topics."),
    _family("kafka_controller_kafkacontroller_globalpartitioncount", _G, "Partitions of topics."),
    _family("kafka_server_kafkaserver_brokerstate", _G, "3: running."),
    _family(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        _G,
        "Requests that wait: fetches for records, group requests for other members; with a remote"
        " tier, fetches (RemoteFetch) and lookups by time (RemoteListOffsets) for the archive.",
        ("delayedOperation",),
    ),
    _family(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions", _G, "Fetch sessions kept."
    ),
    _family(
        "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
        _G,
        "Partitions that fetch sessions remember.",
    ),
    _family(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        _C,
        "Fetch sessions that the broker evicted for others.",
    ),
    _family("strandline_metadata_version", _G, "Entries of the metadata log."),
    _family(
        "strandline_log_directory_free_bytes", _G, "Space left under a log folder.", ("directory",)
    ),
)

GROUPS = (
    _family(
        "kafka_coordinator_group_groupmetadatamanager_numgroups",
        _G,
        "Groups, by state.",
        ("state",),
    ),
    _family(
        "kafka_coordinator_group_groupmetadatamanager_numoffsets", _G, "Committed offsets kept."
    ),
    _family("kafka_consumergroup_members", _G, "Members of a group.", ("consumergroup",)),
    _family("kafka_consumergroup_current_offset", _G, "Committed offset.", _GROUP_PARTITION),
    _family(
        "kafka_consumergroup_lag",
        _G,
        "Records between the committed offset and the end of the partition.",
        _GROUP_PARTITION,
    ),
)

PROCESS = (
    _family("process_cpu_seconds_total", _C, "CPU time of the broker's process."),
    _family("process_resident_memory_bytes", _G, "Memory of the process that is in RAM."),
    _family("process_virtual_memory_bytes", _G, "Address space of the process."),
    _family("process_open_fds", _G, "Open files and sockets."),
    _family("process_max_fds", _G, "Limit of open files and sockets."),
    _family("process_threads", _G, "Threads."),
    _family("process_start_time_seconds", _G, "Start time of the process, in seconds since 1970."),
    _family("python_gc_collections_total", _C, "Garbage collections.", ("generation",)),
    _family("strandline_build_info", _G, "1, with the release.", ("version",)),
    _family(
        "strandline_metrics_left_out",
        _G,
        "Series that /metrics omits because there are too many, by subject.",
        ("what",),
    ),
)

SECTIONS: Mapping[str, tuple[Family, ...]] = {
    "Requests": REQUESTS,
    "Connections": CONNECTIONS,
    "Topics": TOPICS,
    "Tiers": TIERS,
    "Partitions": PARTITIONS,
    "Broker": REPLICAS,
    "Consumer groups": GROUPS,
    "Process": PROCESS,
}

FAMILIES: Mapping[str, Family] = {
    family.name: family for section in SECTIONS.values() for family in section
}

"""The table of all metrics on /metrics, read by collector, documentation and tests.

Names are those of Kafka with the JMX exporter's usual rules (`lowercaseOutputName`), so that
dashboards and alerts for Kafka work; metrics that Kafka lacks begin with `strandline_`, those of
every process with `process_`, and group lag has the names of kafka_exporter.

A name stands with its labels, its help text below it. A name that ends in `_total` is a counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from strandline.broker.telemetry.exposition import Family, Kind, Sample

_ENTRY = re.compile(r"^    (\w+)(?:\{([^}]*)\})?\n((?:        .*\n)+)", re.MULTILINE)


def _families(table: str, *, also: str = "", kind: Kind = Kind.GAUGE) -> tuple[Family, ...]:
    """Returns the families of a table, each with `also` at the end of its help text."""
    return tuple(
        Family(
            name=name,
            kind=Kind.COUNTER if name.endswith("_total") else kind,
            help=" ".join(f"{text} {also}".split()),
            labels=tuple(labels.replace(",", " ").split()),
        )
        for name, labels, text in _ENTRY.findall(table)
    )


SECTIONS: Mapping[str, tuple[Family, ...]] = {
    "Requests": (
        *_families("""
    kafka_network_requestmetrics_requests_total{request, version}
        Requests, by API and version.
    kafka_network_requestmetrics_errors_total{request, error}
        Error codes in answers, by API; NONE counts answers without any.
"""),
        *_families(
            """
    kafka_network_requestmetrics_totaltimems{request}
        Ms from taking a request up to its answer being ready.
    kafka_network_requestmetrics_requestqueuetimems{request}
        Ms that a request lay in its buffer while others ran.
    kafka_network_requestmetrics_localtimems{request}
        Ms that the broker worked on a request.
    kafka_network_requestmetrics_remotetimems{request}
        Ms that a request waited: for records, an fsync, the object store, members.
""",
            also="Quantiles of the last one to two minutes, to a factor of two.",
            kind=Kind.SUMMARY,
        ),
        *_families(
            """
    kafka_network_requestmetrics_throttletimems{request}
        Ms for which a quota throttled clients.
    kafka_network_requestmetrics_requestbytes{request}
        Bytes of requests.
    kafka_network_requestmetrics_responsebytes{request}
        Bytes of answers.
""",
            kind=Kind.SUMMARY,
        ),
        *_families("""
    strandline_requests_refused_total
        Requests that were malformed or of an unsupported version: the broker closed their
        connections.
"""),
    ),
    "Connections": _families("""
    kafka_server_socket_server_metrics_connection_count
        Open connections.
    kafka_server_socket_server_metrics_connection_creation_total
        Connections that were accepted.
    strandline_connections_refused_total
        Connections that the broker did not serve, above max.connections, max.connections.per.ip
        or a connection_creation_rate.
    strandline_connections_closed_total{reason}
        Connections that the broker closed: idle, stalled in a request or an answer, without a
        login in time (login), or above a lowered max.connections (excess).
    strandline_connections_logging_in
        Connections whose clients have not logged in yet.
    strandline_failed_logins_total{address}
        Failed logins, by the client's address; from the hundredth address on as "other".
    strandline_tls_handshakes_total{listener,protocol,cipher}
        Handshakes of TLS that are done, by listener, protocol and cipher suite.
    strandline_tls_handshake_failures_total{listener,reason}
        Handshakes of TLS that failed, by reason.
    strandline_tls_certificate_days_left{listener,certificate}
        Days until the broker's own certificate ends (own), or the first of its authorities
        (trusted) or of its lists of revoked certificates (crl); negative afterwards.
    strandline_authorization_denied_total{resource,operation}
        What clients asked for and may not do, by the kind of resource and the operation.
    strandline_acls
        Access control rules.
    strandline_audit_lines_lost_total
        Lines of the record of who did what that could not be written, and did not fit into memory.
    strandline_connections_muted
        Connections that a quota mutes.
    strandline_receive_buffer_bytes
        Memory of all receive buffers.
"""),
    "Topics": _families(
        """
    kafka_server_brokertopicmetrics_messagesin_total{topic}
        Records appended.
    kafka_server_brokertopicmetrics_bytesin_total{topic}
        Bytes of batches appended.
    kafka_server_brokertopicmetrics_bytesout_total{topic}
        Bytes of batches sent to consumers, from both tiers.
    kafka_server_brokertopicmetrics_totalproducerequests_total{topic}
        Batches that producers sent.
    kafka_server_brokertopicmetrics_failedproducerequests_total{topic}
        Batches with invalid content, or that the broker could not write.
    kafka_server_brokertopicmetrics_totalfetchrequests_total{topic}
        Reads of partitions for consumers.
    kafka_server_brokertopicmetrics_failedfetchrequests_total{topic}
        Reads that failed because of the broker or its disk.
    kafka_server_brokertopicmetrics_remotefetchrequests_total{topic}
        Reads that needed the object store.
    kafka_server_brokertopicmetrics_remotefetchbytes_total{topic}
        Bytes of batches read from the object store.
    kafka_server_brokertopicmetrics_remotefetcherrors_total{topic}
        Reads from the object store that failed.
    kafka_server_brokertopicmetrics_replicationbytesin_total{topic}
        Bytes of batches fetched from leaders.
    kafka_server_brokertopicmetrics_replicationbytesout_total{topic}
        Bytes of batches sent to followers.
    kafka_server_brokertopicmetrics_remotecopybytes_total{topic}
        Bytes archived and committed.
    kafka_server_brokertopicmetrics_remotecopyrequests_total{topic}
        Segments archived and committed.
    kafka_server_brokertopicmetrics_remotecopyerrors_total{topic}
        Attempts to archive that failed.
    kafka_server_brokertopicmetrics_remotedeleterequests_total{topic}
        Segments deleted in the archive.
    kafka_server_brokertopicmetrics_remotedeleteerrors_total{topic}
        Attempts to delete in the archive that failed.
""",
        also="Without a label: the sum, with the topics that are deleted by now.",
    ),
    "Tiers": _families("""
    kafka_server_brokertopicmetrics_remotecopylagbytes{topic}
        Bytes of closed segments that are not archived yet; none while copying is turned off.
    kafka_server_brokertopicmetrics_remotecopylagsegments{topic}
        Closed segments that are not archived yet; none while copying is turned off.
    kafka_server_brokertopicmetrics_remotedeletelagbytes{topic}
        Bytes of unreferenced objects in the archive that wait for deletion: of expired segments,
        and of replaced objects.
    kafka_server_brokertopicmetrics_remotedeletelagsegments{topic}
        Expired segments in the archive that wait for deletion.
    kafka_server_brokertopicmetrics_remotelogsizebytes{topic}
        Bytes in the archive.
    kafka_server_brokertopicmetrics_remotelogmetadatacount{topic}
        Segments in the archive.
    strandline_remote_copy_failing_seconds{topic, partition, error}
        Seconds for which archiving a partition has failed, with the kind of the last error;
        absent otherwise.
    strandline_remote_delete_failing_seconds{topic, partition, error}
        Seconds for which deleting in the archive has failed; absent otherwise.
    strandline_remote_upkeep_failing_seconds{activity, subject, error}
        Seconds for which other work for the archive has failed: `purge` of a deleted topic, uploads
        of `groups`, `transactions`, of metadata (`mirror`) and of changes.json (`list`), and the
        `look` for deleted objects; absent otherwise.
    strandline_remote_copy_waiting_segments{topic, reason}
        Closed segments that are not archived, by reason: `next` and `queued` wait for their copy,
        `unstable` for the end of an open transaction, `uncleaned` for the cleaner, `delayed` for
        remote.copy.lag.*; `gap`, `overlap` and `fenced` need an operator.
    strandline_remote_copy_held_seconds{
            topic, partition, transactional_id, producer_id, start_offset}
        Age in seconds of the oldest open transaction of a partition, if it keeps closed segments
        from the archive; up to a minute late, and absent otherwise. The transactional id is empty
        where no coordinator knows the transaction.
    strandline_exposed_records{topic, tiered}
        Records that only this machine has, counted by offsets: the loss if it burned now. `tiered`
        is false for topics without an archive: all their records. Groups and
        transactions are told by their topics. Without a topic: the sum.
    strandline_exposed_bytes{topic, tiered}
        Bytes of those records on the disk.
    strandline_exposed_seconds{topic}
        Seconds since the oldest of those records arrived, of topics with an archive; up to a check
        interval too many. Without a topic: the longest.
    strandline_exposed_late_seconds{topic}
        Seconds by which that exceeds strandline.remote.active.segment.upload.ms of the topic, or
        strandline.remote.groups.upload.ms; 0 with -1, and while remote.log.copy.disable is true.
    strandline_exposed_unknown_partitions
        Partitions with an archive whose extent the broker does not know yet: the figures above
        leave them out.
    strandline_remote_up
        1 if the object store answers and takes reads, 0 if it is unreachable or refuses them.
    strandline_remote_last_answer_seconds{what}
        Seconds since the object store last answered a read and a write, or since the start; the
        broker asks every 20 s.
    strandline_remote_down_seconds{error, reason}
        Seconds for which the object store has been unreachable or refused reads, with the kind of
        error and its text; absent otherwise.
    strandline_remote_writes_refused_seconds{error, reason}
        Seconds for which the object store has refused writes, with the kind of error
        (`AccessDenied`: it is forbidden, `StoreFull`: there is no room) and its text; absent
        otherwise.
    strandline_remote_conditions_atomic
        0 if more than one of several concurrent conditional writes succeeded at the start: the
        archive is safe with this broker alone. 1 if just one did.
    strandline_remote_lacking{request}
        1 for each kind of request that the object store refused, so that the broker does it in
        another way: `checksums`, `multipart`, `batch_delete`.
    strandline_replica_lag_seconds
        On a read-only replica alone: seconds since it had all that its origin had archived, as far
        as the bucket says. It has none of the next three metrics.
    strandline_remote_archive_owned
        1 if this broker owns the archive; 0 until it knows that, and once another broker owns it.
    strandline_metadata_mirror_lag
        Changes of topics and configurations that are not in the bucket yet.
    strandline_remote_deleted_objects_total{object}
        Objects outside of topics that were deleted in the bucket, and that the broker writes
        again: `cluster` is cluster.json, `metadata`, `groups` and `transactions` are the objects of
        those folders.
    strandline_archive_verified_timestamp_seconds{depth}
        When `strandline archive verify` last checked the whole archive, in seconds since 1970, by
        depth: `sizes`, `checksums`, `everything`. Absent: never, or not known yet.
    strandline_archive_verify_findings{depth}
        Findings that this check has left.
    strandline_remote_requests_total{operation}
        Requests to the object store, attempts included.
    strandline_remote_failed_attempts_total
        Attempts of requests to the object store that failed.
    strandline_remote_throttled_seconds_total{what}
        Seconds for which remote.log.manager.*.max.bytes.per.second throttled copies and fetches.
    strandline_cold_cache_bytes
        Memory of chunks of archived segments.
    strandline_cold_running_downloads
        Chunks whose download is under way.
    strandline_cold_index_bytes
        Memory of indexes of archived segments.
    strandline_cold_index_evictions_total
        Indexes dropped because of remote.log.index.file.cache.total.size.bytes.
    kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent
        Idle part of the copier's pool, 0 to 1.
    kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize
        Requests for readers that wait for a thread of remote.log.reader.threads.
    kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent
        Idle part of the readers' pool, 0 to 1.
    kafka_server_delayedremotefetchmetrics_expires_total
        Fetches whose remote.fetch.max.wait.ms expired before all their archived records were
        there. Their downloads continued.
    kafka_server_delayedremotelistoffsetsmetrics_expires_total
        Lookups by time that got REQUEST_TIMED_OUT, by partition: the client's timeout or
        remote.list.offsets.request.timeout.ms expired.
    strandline_remote_pool_size{pool}
        Jobs that may run at a time: remote.log.manager.copier.thread.pool.size,
        remote.log.manager.expiration.thread.pool.size, remote.log.reader.threads.
    strandline_cold_chunks_total{found}
        Chunks that readers requested, by their place: memory, download under way, disk, object
        store.
    strandline_cold_downloaded_bytes_total
        Bytes fetched for readers.
    strandline_cold_failures_total{reason}
        Downloads that failed or were damaged (corrupt), and reads that failed because an object
        that a manifest names is missing, corrupt, in an archive class (archived) or refused
        (denied).
    strandline_cold_limit_bytes_per_second
        Present limit of all cold reads, so that live traffic does not wait; 0: no limit, because
        there is no live traffic. Below strandline.remote.fetch.yield.floor.bytes.per.second the
        broker waits for a core.
    strandline_cold_lateness_seconds_max
        Wait of the event loop above which the broker throttles cold reads:
        strandline.remote.fetch.yield.ms, or 1.3 times the wait without them.
    strandline_cold_held_answers
        Answers from the archive that wait for live traffic.
    strandline_cold_held_seconds_total
        Seconds during which answers from the archive waited for live traffic.
    strandline_cold_limit_cuts_total
        Number of times that the broker lowered the limit of cold reads because live traffic
        waited too long.
"""),
    "Partitions": _families("""
    kafka_log_log_size{topic, partition}
        Bytes on the local disk.
    kafka_log_log_numlogsegments{topic, partition}
        Segments on the local disk.
    kafka_log_log_logstartoffset{topic, partition}
        First offset, in either tier.
    kafka_log_log_logendoffset{topic, partition}
        Next offset that a record gets.
    kafka_log_log_retentionsizeinpercent{topic, partition}
        Bytes in percent of retention.bytes; 0 without such a limit, and for tiered topics. Above
        100 segments wait for deletion.
    kafka_log_remote_remotelogmanager_retentionsizeinpercent{topic, partition}
        For tiered topics, bytes in both tiers in percent of retention.bytes; bytes in both count
        once.
    kafka_log_remote_remotelogmanager_localretentionsizeinpercent{topic, partition}
        For tiered topics, bytes on the local disk in percent of local.retention.bytes.
    strandline_log_tier_bytes{topic, partition, tier}
        Bytes per tier; bytes in both tiers count in both.
    kafka_log_logcleanermanager_max_dirty_percent
        Dirty part of the compacted log that needs compaction most.
    kafka_log_logcleanermanager_time_since_last_run_ms
        Ms since the cleaner last looked for something to compact.
    kafka_log_logcleanermanager_uncleanable_partitions_count
        Compacted logs that the cleaner skips until the next start; the log says why.
    kafka_log_logcleanermanager_uncleanable_bytes
        Dirty bytes of those logs.
    kafka_log_logcleaner_max_compaction_delay_secs
        Seconds since max.compaction.lag.ms expired, for the log that has waited longest.
    kafka_log_logcleaner_max_buffer_utilization_percent
        Percent of log.cleaner.dedupe.buffer.size that the last compaction used.
    kafka_log_logcleaner_max_clean_time_secs
        Seconds that the last compaction of a log took.
    strandline_cleaner_cleanings_total
        Compactions of logs.
    strandline_cleaner_read_bytes_total
        Bytes read by compaction, in both passes.
    strandline_cleaner_written_bytes_total
        Bytes written by compaction.
"""),
    "Broker": _families("""
    kafka_server_replicamanager_partitioncount
        Partitions that this broker serves.
    kafka_server_replicamanager_leadercount
        Partitions that this broker leads.
    kafka_server_replicamanager_underreplicatedpartitions
        Partitions that this broker leads with fewer replicas in sync than they have.
    kafka_server_replicamanager_underminisrpartitioncount
        Partitions that it leads with fewer replicas in sync than they need for acks=all.
    kafka_server_replicamanager_atminisrpartitioncount
        Partitions that it leads with just as many replicas in sync as they need for acks=all; with
        one replica that is always so.
    strandline_partitions_without_spare
        Partitions of those two kinds together: underreplicated, and not more in sync than they
        need. With the next broker that is lost, producers with acks=all are refused.
    strandline_follower_behind_partitions{follower}
        Partitions that this broker leads and of which another broker, the follower, is not in sync.
    strandline_follower_behind_seconds{follower}
        For how long it has not been in sync with the partition of which it is behind for longest,
        as far back as this leader knows. Without a partition of which it is behind, there is none.
    kafka_server_leaderreplication_byte_rate
        Bytes a second that followers fetched here of replicas that a throttle covers
        (leader.replication.throttled.replicas), over replication.quota.window.num windows.
    kafka_server_followerreplication_byte_rate
        Bytes a second that this broker fetched for replicas that a throttle covers
        (follower.replication.throttled.replicas). Both are there in a cluster alone.
    kafka_server_replicamanager_offlinereplicacount
        Partitions that the broker does not serve: their log folder failed, or had no room to
        create them.
    kafka_server_kafkaserver_brokerstate
        3: running.
    kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation}
        Requests that wait: fetches for records, group requests for other members; with a remote
        tier, fetches (RemoteFetch) and lookups by time (RemoteListOffsets) for the archive.
    kafka_server_fetchsessioncache_numincrementalfetchsessions
        Fetch sessions kept.
    kafka_server_fetchsessioncache_numincrementalfetchpartitionscached
        Partitions that fetch sessions remember.
    kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total
        Fetch sessions that the broker evicted for others.
    kafka_server_broker_metadata_metrics_last_applied_record_offset
        Last record of the controllers' log that is in force at this broker of a cluster; the
        controller's lastcommittedrecordoffset less this is how far it is behind.
    strandline_metadata_version
        Entries of the metadata log.
    strandline_log_directory_free_bytes{directory}
        Space left under a log folder.
"""),
    "Controller": _families("""
    kafka_controller_kafkacontroller_activecontrollercount
        1: this node decides.
    kafka_controller_kafkacontroller_offlinepartitionscount
        Partitions that no broker serves.
    kafka_controller_kafkacontroller_globaltopiccount
        Topics.
    kafka_controller_kafkacontroller_globalpartitioncount
        Partitions of topics.
    kafka_controller_kafkacontroller_activebrokercount
        Brokers that are unfenced.
    kafka_controller_kafkacontroller_fencedbrokercount
        Brokers that are registered and fenced: they did not start yet, are down, or hang.
    kafka_controller_kafkacontroller_controlledshutdownbrokercount
        Brokers that hand over before they stop.
    kafka_controller_kafkacontroller_brokerregistrationstate{broker}
        State of a broker: 10 fenced, 20 in controlled shutdown, 30 active.
    kafka_controller_kafkacontroller_timesincelastheartbeatreceivedms{broker}
        Ms since the last heartbeat of a broker that has a session.
    kafka_controller_kafkacontroller_preferredreplicaimbalancecount
        Partitions that their first replica does not lead.
    kafka_controller_kafkacontroller_lastcommittedrecordoffset
        Last record of the metadata log.
    kafka_controller_kafkacontroller_lastappliedrecordoffset
        Last record of the metadata log that is in force at the controller.
    kafka_server_raft_metrics_current_leader
        Id of the active controller.
    kafka_server_raft_metrics_current_epoch
        Epoch of the controller.
    kafka_server_raft_metrics_high_watermark
        End of the metadata log that is committed.
    kafka_server_raft_metrics_log_end_offset
        End of the metadata log.
    kafka_server_raft_metrics_number_of_voters
        Controllers.
    kafka_server_raft_metrics_number_of_observers
        Brokers that follow the metadata log.
"""),
    "Several brokers": _families("""
    strandline_supervised_up{broker}
        1 if a process of several brokers answered for this page, 0 if it is away, starts or hangs.
    strandline_supervised_restarts_total{broker}
        How often a process ended and was started again.
"""),
    "Consumer groups": _families("""
    kafka_coordinator_group_groupmetadatamanager_numgroups{state}
        Groups, by state.
    kafka_coordinator_group_groupmetadatamanager_numoffsets
        Committed offsets kept.
    kafka_consumergroup_members{consumergroup}
        Members of a group.
    kafka_consumergroup_current_offset{consumergroup, topic, partition}
        Committed offset.
    kafka_consumergroup_lag{consumergroup, topic, partition}
        Records between the committed offset and the end of the partition.
"""),
    "Transactions": _families("""
    strandline_transactional_ids{state}
        Transactional ids, by state; Ongoing is an open transaction.
    strandline_transactions_oldest_open_seconds
        Seconds since the oldest open transaction began; 0 if none is open. The broker aborts it
        after its transaction.timeout.ms.
    strandline_transactions_ended_total{outcome}
        Transactions that were decided: `committed`, `aborted` (by their producer, or because
        another one began under their id), or `timed_out`.
    kafka_server_replicamanager_partitionswithlatetransactionscount
        Partitions whose oldest open transaction is five minutes past transaction.max.timeout.ms:
        nothing will end it.
    kafka_server_replicamanager_produceridcount
        Producer ids that partitions remember.
    kafka_server_addpartitionstotxnmanager_verificationfailure_total
        Batches and offsets that were refused because their partition is not, or could not be made,
        a part of the producer's transaction.
    kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize
        Markers that wait for a partition that cannot take them now: its disk is full, or its folder
        is offline.
    kafka_coordinator_transaction_transactionmarkerchannelmanager_logappendretryqueuesize
        Transactions that have all their markers, and whose end __transaction_state cannot take now.
"""),
    "Process": _families("""
    process_cpu_seconds_total
        CPU time of the broker's process.
    process_resident_memory_bytes
        Memory of the process that is in RAM.
    process_virtual_memory_bytes
        Address space of the process.
    process_open_fds
        Open files and sockets.
    process_max_fds
        Limit of open files and sockets.
    process_threads
        Threads.
    process_start_time_seconds
        Start time of the process, in seconds since 1970.
    python_gc_collections_total{generation}
        Garbage collections.
    strandline_build_info{version}
        1, with the release.
    strandline_metrics_left_out{what}
        Topics, partitions, groups, offsets, failures and open transactions that /metrics omits
        because there are too many.
"""),
}

FAMILIES: Mapping[str, Family] = {
    family.name: family for section in SECTIONS.values() for family in section
}

# Partitions and groups whose state is computed between two checks of the time: a page must not
# delay clients.
LOOKED_UP_PER_STEP = 5
# Items that are only summed between two checks of the time.
ADDED_UP_PER_STEP = 500

# The value of label `topic` in the sum over all of them.
ALL_TOPICS = ""

Row: TypeAlias = tuple[Family, Iterable[Sample]]
# A family with its samples, or None: a step of lookups is done, let others run.
Step: TypeAlias = Row | None


def row_of(name: str, samples: Iterable[Sample]) -> Row:
    """Builds a row, one sample for each set of labels. Raises KeyError for an unknown family."""
    return FAMILIES[name], samples


def single(name: str, value: float) -> Row:
    """Builds the row of a family without labels."""
    return FAMILIES[name], [Sample(value)]

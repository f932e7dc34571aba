"""The function of each kind of row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.comparison import secure, workloads
from bench.comparison.peers import Peer
from bench.comparison.rows import Row
from bench.comparison.workloads import Figures, Site

KINDS: Mapping[str, Callable[[Site, Row, Peer], Figures]] = {
    kind.__name__: kind
    for kind in (
        workloads.move,
        workloads.move_small_records,
        workloads.java,
        workloads.transactions,
        workloads.peak,
        workloads.latency,
        workloads.latency_rewind,
        workloads.latency_upload,
        workloads.cold,
        workloads.cold_s3,
        workloads.cold_s3_far,
        workloads.start,
        workloads.recovery,
        workloads.memory,
        workloads.limit_socket,
        workloads.limit_append,
        workloads.limit_file,
        secure.move_tls,
        secure.tls_handshakes,
        secure.tls_idle,
        secure.acl,
    )
}

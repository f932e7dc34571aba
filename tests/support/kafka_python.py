"""Keeps kafka-python 3.0.12 from forgetting what it was asked to read.

A mistake of that release, met about once in a hundred consumers on a machine with more to do than
it can, and never on an idle one:

    who waits in `KafkaConsumer("t")`            its I/O thread
    the coordinator is made: `request_update`
                                                 asks for the metadata of no topics
    `set_topics`: topics = {t}, need_update
                                                 the answer comes: need_update = False

From here on nobody asks for `t` until `metadata.max.age.ms` (5 min) is over: without a group the
consumer has no partitions, sends no Fetch, and its iterator ends empty. (With a group the leader
asks for metadata again when it assigns, and `assign` asks again for a leader that is unknown.)

`mend` looks at each answer whether it is about all topics that are wanted by then. Tests that
subscribe without a group take their `KafkaConsumer` from here; where somebody else's tests make
them, this module is a plugin (`-p tests.support.kafka_python`). A stall that is left is then not
this one, and may be the broker's.
"""

from __future__ import annotations

import warnings
from functools import wraps

with warnings.catch_warnings():
    # kafka-python reads its definitions in a way that Python is going to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka.cluster import ClusterMetadata
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

__all__ = ["KafkaConsumer", "mend"]

_MENDED = "_strandline_asked"


def mend() -> None:
    """Asks again for topics that were subscribed while metadata was under way; idempotent."""
    build, take = ClusterMetadata.metadata_request, ClusterMetadata.update_metadata
    if hasattr(build, _MENDED):
        return

    @wraps(build)
    def metadata_request(self: ClusterMetadata) -> MetadataRequest:
        # Before the request is built: what comes between the two is asked for once too often.
        self._strandline_asked = frozenset(self._topics)
        return build(self)

    @wraps(take)
    def update_metadata(self: ClusterMetadata, metadata: MetadataResponse) -> None:
        take(self, metadata)
        if not getattr(self, _MENDED, frozenset()).issuperset(self._topics):
            self.request_update()

    setattr(metadata_request, _MENDED, True)
    ClusterMetadata.metadata_request = metadata_request
    ClusterMetadata.update_metadata = update_metadata


mend()

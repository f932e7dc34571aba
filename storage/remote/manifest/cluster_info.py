"""`cluster.json`: the id of the cluster that owns the archive.

Written once, create-if-absent, by the first broker that uses a bucket prefix. A broker that finds
another cluster's id there must not write a single object.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.errors import ObjectNotFound, PreconditionFailed
from strandline.storage.model import Buffer
from strandline.storage.remote.keys import CLUSTER_KEY
from strandline.storage.remote.manifest.json_document import decode_document, encode_document
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    ObjectStore,
    ReadsArchive,
)

FORMAT_NAME = "strandline-cluster"
FORMAT_VERSION = 1
FORMAT_VERSIONS = range(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster an archive belongs to; `format_version` is that of the archive's layout."""

    cluster_id: str
    format_version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        return encode_document(FORMAT_NAME, self.format_version, {"cluster_id": self.cluster_id})

    @classmethod
    def decode(cls, content: Buffer) -> ClusterInfo:
        """Raises CorruptFile or UnsupportedFormat."""
        fields = decode_document(content, FORMAT_NAME, FORMAT_VERSIONS, CLUSTER_KEY)
        return cls(cluster_id=fields.text("cluster_id"), format_version=fields.integer("version"))


def load_cluster_info(store: ReadsArchive) -> ClusterInfo | None:
    """Returns the archive's owner; None for an archive that has no owner yet."""
    try:
        return ClusterInfo.decode(store.get(CLUSTER_KEY))
    except ObjectNotFound:
        return None


def create_cluster_info(store: ObjectStore, info: ClusterInfo) -> ClusterInfo:
    """Writes `info` unless there is one already; returns the stored one.

    The caller compares: another cluster id means that another cluster owns this archive.
    """
    try:
        store.put(CLUSTER_KEY, info.encode(), condition=IfAbsent())
    except PreconditionFailed:
        return ClusterInfo.decode(store.get(CLUSTER_KEY))
    return info

"""An archive belongs to one cluster: who came first."""

from __future__ import annotations

import pytest

from strandline.storage.errors import UnsupportedFormat
from strandline.storage.remote.manifest import cluster_info
from strandline.storage.remote.manifest.cluster_info import (
    ClusterInfo,
    create_cluster_info,
    load_cluster_info,
)
from strandline.storage.remote.manifest.json_document import (
    encode_document,
)
from tests.support.memory_store import MemoryStore

# --- cluster.json ----------------------------------------------------------------------------


def test_an_archive_belongs_to_who_came_first() -> None:
    store = MemoryStore()
    assert load_cluster_info(store) is None
    first = create_cluster_info(store, ClusterInfo(cluster_id="first"))
    second = create_cluster_info(store, ClusterInfo(cluster_id="second"))
    assert first == second == load_cluster_info(store) == ClusterInfo(cluster_id="first")


def test_cluster_info_of_a_later_release_is_refused() -> None:
    content = encode_document(cluster_info.FORMAT_NAME, 2, {"cluster_id": "x"})
    with pytest.raises(UnsupportedFormat):
        ClusterInfo.decode(content)

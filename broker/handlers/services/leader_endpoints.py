"""Addresses of the leaders that a refusal names: a client need not ask for them (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId


class Endpoint(NamedTuple):
    """The address of a broker, on the listener of the client."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None


def leader_endpoints(
    image: MetadataImage, leaders: Iterable[NodeId], listener: str
) -> Iterator[Endpoint]:
    """Yields the address of each leader that clients of that listener can reach."""
    for node_id in sorted(leaders):
        broker = image.brokers.get(node_id)
        if broker is not None and not broker.fenced:
            for one in broker.end_points:
                if one.name == listener:
                    yield Endpoint(node_id, one.host, one.port, broker.rack)

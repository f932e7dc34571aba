"""Asks the controllers which cluster is theirs, for a broker with new folders (KIP-919)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from strandline.broker.cluster.membership.channel import RETRIES
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerError
from strandline.broker.peers.peer import Connect
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode

_CONTROLLERS: Final = 2
_ANSWER_S_MAX: Final = 10.0
# KIP-919 came with 3.7-IV0.
_TOO_OLD: Final = (
    "controllers under a metadata.version below 3.7 do not tell their cluster: raise it, or format"
    " log.dirs as those of Kafka's brokers, by `kafka-storage.sh format --cluster-id ... --config`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCluster:
    """The id of the cluster; without one why no controller told it."""

    cluster_id: str | None = None
    reason: str = ""


async def find_cluster(
    servers: Sequence[Address], connect: Connect, *, wait_s: float
) -> FoundCluster:
    """Asks one controller after the other, for so long."""
    reason = ""
    try:
        async with asyncio.timeout(wait_s):
            for attempt, server in enumerate(cycle(servers), 1):
                found = await _ask(server, connect)
                if found.cluster_id is not None:
                    return found
                reason = found.reason
                await asyncio.sleep(RETRIES.wait_s(attempt))
    except TimeoutError:
        pass
    return FoundCluster(reason=reason or "none answers")


async def _ask(server: Address, connect: Connect) -> FoundCluster:
    try:
        connection = await connect(server)
        try:
            answer = await connection.call(
                DescribeClusterRequest(endpoint_type=_CONTROLLERS),
                DescribeClusterResponse,
                timeout_s=_ANSWER_S_MAX,
            )
        finally:
            connection.close()
    except PeerError as error:
        return FoundCluster(reason=str(error))
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return FoundCluster(reason=f"{server}: {_TOO_OLD}")
    if answer.error_code:
        return FoundCluster(reason=f"{server}: {ErrorCode(answer.error_code).name}")
    return FoundCluster(cluster_id=answer.cluster_id)

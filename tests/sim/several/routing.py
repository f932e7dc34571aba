"""A client of several brokers: it asks the leader, or the coordinator, and finds it again.

An answer with an error makes it look for the leader or coordinator anew, before the next request,
as Kafka's clients do. What it was told of a leader it remembers with the leader's epoch, and goes
to no leader of an older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias
from zlib import crc32

from strandline.broker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from strandline.broker.protocol.messages.end_txn import EndTxnRequest
from strandline.broker.protocol.messages.fetch import FetchRequest
from strandline.broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from strandline.broker.protocol.messages.init_producer_id import InitProducerIdRequest
from strandline.broker.protocol.messages.list_offsets import ListOffsetsRequest
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.broker.protocol.messages.produce import ProduceRequest
from strandline.broker.protocol.schema.schema import Request, Struct
from tests.sim.client import RETRY_S, Unanswered, VirtualClient
from tests.sim.cluster import VirtualBroker
from tests.sim.loop import Process
from tests.sim.network import VirtualNetwork

GROUP, TRANSACTION = 0, 1
# Shorter than some troubles: what was given up may still arrive.
REQUEST_S = 8.0
# A partition, or the key of a coordinator; None is any broker.
Place: TypeAlias = tuple[str, int] | tuple[int, str] | None

# Told with each answer of a leader: the broker, the processes it may have come from, the request,
# the answer, and when it was asked.
OnAnswer: TypeAlias = Callable[[int, Collection[Process], Request, Any, float], None]


class RoutedClient(VirtualClient):
    """One client, with a connection to each broker that it needs."""

    def __init__(
        self,
        network: VirtualNetwork,
        brokers: Sequence[VirtualBroker],
        *,
        name: str,
        on_answer: OnAnswer = lambda *_: None,
    ) -> None:
        super().__init__(network, lambda: 0, name=name)
        self._brokers = {broker.node_id: broker for broker in brokers}
        self._by_node = {
            node: VirtualClient(
                network, lambda port=broker.port: port, name=name, request_s=REQUEST_S
            )
            for node, broker in self._brokers.items()
        }
        self._places: dict[Place, int] = {}
        # The epoch under which the leader of a partition was named.
        self.leader_epochs: dict[Place, int] = {}
        self._on_answer = on_answer
        # Not all begin at the same one.
        self._next = crc32(name.encode())

    async def ask(self, request: Request, version: int) -> Any:
        """Raises Unanswered."""
        place = place_of(request)
        node = await self._node_of(place)
        if isinstance(request, FetchRequest):
            # The leader is to say if it was elected again since.
            ((asked,),) = (one.partitions for one in request.topics)
            asked.current_leader_epoch = self.leader_epochs[place]
        began_s, broker = asyncio.get_running_loop().time(), self._brokers[node]
        first = broker.process
        try:
            answer = await self._by_node[node].ask(request, version)
        except Unanswered:
            self._places.pop(place, None)
            raise
        if any(error_codes(answer)):
            self._places.pop(place, None)
        # It may have died after it answered, and be another one when the answer arrives.
        self._on_answer(node, {first, broker.process}, request, answer, began_s)
        return answer

    def close(self) -> None:
        for client in self._by_node.values():
            client.close()

    def known_node(self, place: Place) -> int | None:
        return self._places.get(place)

    async def _node_of(self, place: Place) -> int:
        if place is None:
            return self._any()
        found = self._places.get(place)
        if found is None:
            found = await self._find(place)
            self._places[place] = found
        return found

    def _any(self) -> int:
        """One broker after the other."""
        nodes = list(self._by_node)
        self._next += 1
        return nodes[self._next % len(nodes)]

    async def _find(self, place: Place) -> int:
        """Asks any broker, once. Raises Unanswered if it knows none."""
        assert place is not None
        node = self._any()
        key, value = place
        if isinstance(key, str):
            topics = [MetadataRequestTopic(name=key)]
            request: Request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            answer = await self._by_node[node].ask(request, 12)
            for topic in answer.topics:
                for one in topic.partitions:
                    # A broker that stood still names the leader of then, and itself perhaps.
                    is_old = one.leader_epoch < self.leader_epochs.get(place, 0)
                    is_led = one.leader_id in self._by_node
                    if one.partition_index == value and is_led and not is_old:
                        self.leader_epochs[place] = one.leader_epoch
                        return int(one.leader_id)
        else:
            request = FindCoordinatorRequest(key_type=key, coordinator_keys=[str(value)])
            answer = await self._by_node[node].ask(request, 4)
            (found,) = answer.coordinators
            if not found.error_code:
                return int(found.node_id)
        await asyncio.sleep(RETRY_S)
        raise Unanswered(f"nobody leads {place}")


def place_of(request: Request) -> Place:
    """Returns where a request has to go."""
    match request:
        case ProduceRequest() | FetchRequest() | ListOffsetsRequest():
            (topic,) = request.topics
            (one,) = topic.partitions
            index = getattr(one, "index", None)
            for name in ("partition", "partition_index"):
                index = getattr(one, name, index)
            assert isinstance(index, int)
            return topic.name, index
        case InitProducerIdRequest(transactional_id=None):
            return None
        case InitProducerIdRequest() | AddPartitionsToTxnRequest() | EndTxnRequest():
            return TRANSACTION, str(request.transactional_id)
        case _:
            group = getattr(request, "group_id", None)
            return None if group is None else (GROUP, group)


def error_codes(answer: Struct) -> Iterator[int]:
    """Yields the error codes anywhere in an answer."""
    for name in type(answer).fields:
        value = getattr(answer, name)
        if name.endswith("error_code"):
            yield value
        elif isinstance(value, Struct):
            yield from error_codes(value)
        elif isinstance(value, list | tuple):
            for one in value:
                if isinstance(one, Struct):
                    yield from error_codes(one)

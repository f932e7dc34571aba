"""What administrators ask about transactions, on a bare connection."""

from __future__ import annotations

from strandline.broker.protocol.messages.describe_producers import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from strandline.broker.protocol.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from strandline.broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.wire import WireClient


def describe(client: WireClient, transactional_id: str) -> DescribedTransaction:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = client.ask(request, DescribeTransactionsResponse, 0).transaction_states
    return found


def producers_of(client: WireClient, topic: str, partition: int = 0) -> list[ActiveProducer]:
    request = DescribeProducersRequest(
        topics=[DescribeProducersTopic(name=topic, partition_indexes=[partition])]
    )
    answer = client.ask(request, DescribeProducersResponse, 0)
    return list(answer.topics[0].partitions[0].active_producers)


def write_marker(
    client: WireClient,
    producer: ActiveProducer,
    topic: str,
    *,
    partition: int = 0,
    coordinator_epoch: int | None = None,
    version: int = 1,
) -> ErrorCode:
    """Aborts as `kafka-transactions.sh abort` does: by what DescribeProducers tells."""
    epoch = producer.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
                coordinator_epoch=max(epoch, 0),
            )
        ]
    )
    (marker,) = client.ask(request, WriteTxnMarkersResponse, version).markers
    return ErrorCode(marker.topics[0].partitions[0].error_code)

"""Metadata that records the topics which it creates (`auto.create.topics.enable`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.broker.audit.record import AuditRecord
from strandline.broker.cluster.metadata.controller_messages import NewTopic, TopicResult
from strandline.broker.config.listeners import Listener
from strandline.broker.handlers.metadata.metadata import MetadataHandlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.schema.errors import ErrorCode


class RecordedMetadata(MetadataHandlers):
    """As MetadataHandlers."""

    def __init__(
        self, services: Services, advertised: Callable[[str], Listener], record: AuditRecord
    ) -> None:
        super().__init__(services, advertised)
        self._record = record

    async def _create(
        self, missing: Sequence[NewTopic], context: RequestContext
    ) -> Sequence[TopicResult]:
        results = await super()._create(missing, context)
        for result in results:
            # Another client may have created it meanwhile.
            if result.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                what = {"topic": result.name, "partitions": result.partition_count}
                self._record.changed(context.caller, "Metadata", what, result.error_code.name)
        return results

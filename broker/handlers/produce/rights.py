"""The rights to write of a Produce: to its transactional id, and to each topic.

Nothing of a request is stored if its transaction is denied. Of denied topics nothing is, and the
others are written. Existence is not looked at: a denied name gets the same answer with and without
its topic. An unknown id has no name that a right could be of; the client learns that it is unknown.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from strandline.broker.authorization.authorizer import Access
from strandline.broker.handlers.produce.confirmed_partitions import transactional_batch
from strandline.broker.protocol.messages.produce import ProduceRequest, ProduceTopic
from strandline.broker.security.acl import AclOperation, ResourceKind


def may_write_transaction(request: ProduceRequest, access: Access) -> bool:
    """Returns whether its transactional id may be used; it is not if no batch is part of it."""
    name = request.transactional_id
    return (
        name is None
        or access.shows(AclOperation.WRITE, ResourceKind.TRANSACTIONAL_ID, name)
        or not any(
            transactional_batch(wanted.records)
            for topic in request.topics
            for wanted in topic.partitions
        )
        # Denied: this time it is told.
        or access.may(AclOperation.WRITE, ResourceKind.TRANSACTIONAL_ID, name)
    )


def denied_topics(
    topics: Sequence[ProduceTopic],
    access: Access,
    name_of: Callable[[uuid.UUID | None], str | None],
) -> list[ProduceTopic]:
    """Returns the topics that may not be written; `name_of` an id is None if it is unknown."""
    return [
        topic
        for topic in topics
        if (name := topic.name or name_of(topic.topic_id))
        and not access.may(AclOperation.WRITE, ResourceKind.TOPIC, name)
    ]

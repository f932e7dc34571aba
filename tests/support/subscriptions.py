"""What a member of a classic group sends about itself."""

from __future__ import annotations

from strandline.broker.protocol.formats.consumer_protocol import (
    CONSUMER_PROTOCOL_VERSION_MAX,
    ConsumerProtocolSubscription,
)
from strandline.broker.protocol.formats.versioned import write_struct


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = CONSUMER_PROTOCOL_VERSION_MAX
) -> bytes:
    """A member's metadata for a protocol."""
    return write_struct(subscription, version)

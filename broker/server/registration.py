"""What a broker process registers of itself at each start (KIP-631).

The controller gives the registration its epoch. A port that the system chooses is 0 in it: the
broker registers before it listens, and tells the port that it got itself.
"""

from __future__ import annotations

from strandline.broker.cluster.metadata.features import FEATURES
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import parse_protocol_map, protocol_of
from strandline.broker.protocol.formats.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from strandline.storage import entropy
from strandline.storage.local.formats.checkpoint import decode_id
from strandline.storage.local.log_dirs.log_dirs import LogDirs

# SecurityProtocol in requests and records.
_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
# Replaced by the controller.
_NO_EPOCH = -1


def new_registration(config: BrokerConfig, log_dirs: LogDirs) -> RegisterBrokerRecord:
    """Describes this process, under a new incarnation id; it may lead partitions at once."""
    protocols = parse_protocol_map(config.identity.protocols)
    return RegisterBrokerRecord(
        broker_id=config.node_id,
        incarnation_id=entropy.new_id(),
        broker_epoch=_NO_EPOCH,
        end_points=[
            BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=_PROTOCOLS[protocol_of(listener.name, protocols) or ""],
            )
            for listener in config.advertised_listeners
        ],
        features=[
            BrokerFeature(
                name=feature.name,
                min_supported_version=feature.lowest,
                max_supported_version=feature.highest,
            )
            for feature in FEATURES.values()
        ],
        rack=config.identity.rack,
        fenced=False,
        log_dirs=[
            decode_id(directory.directory_id)
            for directory in log_dirs.directories
            if not directory.failure
        ],
    )

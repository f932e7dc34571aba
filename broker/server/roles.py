"""Chooses the role of a broker; only its own modules are loaded (docs/decisions/0010)."""

from __future__ import annotations

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.broker import Role


def role_of(config: BrokerConfig, *, is_read_only: bool = False) -> Role:
    """Returns the role for a configuration."""
    if is_read_only:
        from strandline.broker.server.read_only import start_read_only

        return start_read_only
    if config.membership.has_controllers:
        from strandline.broker.server.seat import start_seat

        return start_seat
    if config.membership.is_controller:
        from strandline.broker.server.controller import start_controller

        return start_controller
    if config.archive.is_enabled and config.archive.url is not None:
        from strandline.broker.server.tiered import start_tiered

        return start_tiered
    from strandline.broker.server.local import start_local

    return start_local

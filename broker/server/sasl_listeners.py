"""Which listeners ask who comes, and the handler of a new connection.

    listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT
    sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
    listener.name.clients.plain.sasl.jaas.config=...PlainLoginModule required user_alice="...";

A broker without such a listener loads nothing of SASL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from strandline.broker.cluster.metadata.metadata import Metadata
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import SASL_PLAINTEXT, parse_protocol_map, protocol_of
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.network.answers import Answer, Caller, Gate, RequestHandler
from strandline.storage.clock import Clock


class _Open:
    """The handler of a listener without SASL: everybody is nobody in particular."""

    def __init__(self, dispatcher: Dispatcher, listener: str) -> None:
        self.handle: Callable[[memoryview, str, float], Answer] = partial(
            dispatcher.handle, caller=Caller(listener=listener)
        )


class ConnectionHandlers:
    """Makes the handler of each connection; call it with the name of its listener."""

    def __init__(
        self, config: BrokerConfig, dispatcher: Dispatcher, metadata: Metadata, clock: Clock
    ) -> None:
        self._open = {one.name: _Open(dispatcher, one.name) for one in config.listeners}
        self._gates: dict[str, Callable[[], Gate]] = {}
        for listener in sasl_listeners(config):
            from strandline.broker.handlers.auth.sasl import SaslGate
            from strandline.broker.server.sasl_settings import settings_of

            settings = settings_of(config, metadata, listener)
            self._gates[listener] = partial(
                SaslGate, dispatcher, settings, listener=listener, clock=clock
            )

    def __call__(self, listener: str) -> RequestHandler | Gate:
        gate = self._gates.get(listener)
        return self._open[listener] if gate is None else gate()


def sasl_listeners(config: BrokerConfig) -> Sequence[str]:
    """Names of the listeners that ask who comes."""
    elements = config.given.get("listener.security.protocol.map", "").split(",")
    protocols = parse_protocol_map([element.strip() for element in elements if element.strip()])
    return [
        one.name for one in config.listeners if protocol_of(one.name, protocols) == SASL_PLAINTEXT
    ]


def check_sasl(config: BrokerConfig) -> None:
    """Raises InvalidConfig for a SASL listener that nobody could come in by, or anybody."""
    for listener in sasl_listeners(config):
        from strandline.broker.server.sasl_settings import check_mechanisms

        check_mechanisms(config, listener)

"""The listeners with TLS: their contexts, and the names of their clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import tls_listeners, tls_of
from strandline.broker.network.handshake import Handshakes
from strandline.broker.network.responses import CloseConnectionError
from strandline.broker.tls.certificate import parse_certificate
from strandline.broker.tls.context import server_context
from strandline.broker.tls.der import MalformedDer
from strandline.broker.tls.mapping_rules import MappingRules, NoRuleMatches
from strandline.broker.tls.stores import read_stores
from strandline.storage.clock import Clock
from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.errors import InvalidConfig


class TlsListener:
    """One listener: its settings, and the context of the handshakes that begin now."""

    def __init__(self, config: BrokerConfig, name: str) -> None:
        """Reads its files. Raises InvalidConfig."""
        self.name = name
        self.settings = tls_of(config, name)
        try:
            self._rules = MappingRules(self.settings.principal_mapping_rules)
            self.context = server_context(self.settings, read_stores(self.settings))
        except InvalidConfig as error:
            raise InvalidConfig(f"listener {name}: {error}") from None

    def user_of(self, certificate: bytes) -> str:
        """Returns the user whose certificate it is. Raises CloseConnectionError if it is none's."""
        try:
            return self._rules.user_of(parse_certificate(certificate).subject)
        except MalformedDer as error:
            raise CloseConnectionError(f"a certificate that cannot be read: {error}") from error
        except NoRuleMatches as error:
            raise CloseConnectionError(str(error)) from error


class TlsListeners:
    """All listeners with TLS."""

    def __init__(self, config: BrokerConfig) -> None:
        """Reads the files of all. Raises InvalidConfig."""
        self.by_name = {name: TlsListener(config, name) for name in tls_listeners(config)}

    def handshakes(self, workers: Pool, clock: Clock, failed_delay_ms: int) -> Handshakes:
        """Makes their handshakes; within the running loop."""
        return Handshakes(self._contexts(), workers, clock, failed_delay_s=failed_delay_ms / 1000)

    def _contexts(self) -> Mapping[str, Callable[[], ssl.SSLContext]]:
        def of(listener: TlsListener) -> Callable[[], ssl.SSLContext]:
            return lambda: listener.context

        return {name: of(listener) for name, listener in self.by_name.items()}

    def user_of(self, listener: str, certificate: bytes) -> str:
        """As TlsListener."""
        return self.by_name[listener].user_of(certificate)

"""A plugin of pytest: where kafka-python's tests start a broker of their own, they start ours.

Its fixture runs Kafka's scripts, from files that the sdist leaves out. Here it starts a
`BrokerProcess` with the protocol, the mechanism and the user that the fixture names, and a listener
without either, by which the user is made and topics are listed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from test.integration.fixtures import KafkaFixture

from tests.compat.secured import AUTHORITY, plain_users, tls_settings
from tests.support.broker import BrokerProcess
from tests.support.users import set_passwords

WAIT_S = 60


class OurBroker:
    """In the place of the process that the fixture starts."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def stop(self) -> None:
        self.broker.kill()

    def dump_logs(self) -> None:
        print(self.broker.log_text()[-4000:])


def _open(fixture: Any) -> None:
    if fixture.running:
        return
    folder = Path(tempfile.mkdtemp(prefix="strandline-kafka-python-"))
    broker = BrokerProcess(folder)
    address = broker.add_listener("CLIENTS", fixture.transport)
    fixture.host, fixture.port = "localhost", int(address.rpartition(":")[2])
    # A test shows it the name of the authority's file.
    fixture.ssl_dir = str(folder / "tls")
    if fixture.ssl_enabled:
        broker.settings |= tls_settings(folder / "tls")
        shutil.copy(folder / "tls" / AUTHORITY, folder / "tls" / "ca-cert")
    user, password = fixture.broker_user, fixture.broker_password
    if fixture.sasl_enabled:
        broker.settings |= {
            "sasl.enabled.mechanisms": fixture.sasl_mechanism,
            "listener.name.clients.plain.sasl.jaas.config": plain_users({user: password}),
        }
    broker.start()
    if (fixture.sasl_mechanism or "").startswith("SCRAM"):
        set_passwords(broker, [(user, fixture.sasl_mechanism, password)])
    fixture.child, fixture.running = OurBroker(broker), True


def _close(fixture: Any) -> None:
    if fixture.running and not fixture.external:
        fixture.child.stop()
        shutil.rmtree(fixture.child.broker.folder)
        fixture.running = False


def _topic_names(fixture: Any) -> list[str]:
    admin = AdminClient({"bootstrap.servers": fixture.child.broker.bootstrap})
    return list(admin.list_topics(timeout=WAIT_S).topics)


KafkaFixture.open = _open
KafkaFixture.close = _close
KafkaFixture.get_topic_names = _topic_names

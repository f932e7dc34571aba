"""A controller and three brokers, each a process of its own that a test ends and starts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import BrokerProcess, eventually
from tests.support.controller import LISTENERS, ControllerProcess

WAIT_S = 60
SETTINGS = {
    "process.roles": "broker",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": LISTENERS,
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}


class BouncedCluster:
    """Three brokers; a partition has one of them unless a topic asks for more."""

    def __init__(self, controller: ControllerProcess, brokers: list[BrokerProcess]) -> None:
        self.controller = controller
        self.brokers = brokers
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers)

    def create(
        self,
        *topics: str,
        partitions: int = 1,
        replicas: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Returns when each broker tells the leader of each partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics(
            [NewTopic(topic, partitions, replicas, config=dict(config or {})) for topic in topics]
        )
        for future in made.values():
            future.result(WAIT_S)
        for broker in self.brokers:
            asker = AdminClient({"bootstrap.servers": broker.bootstrap})
            for topic in topics:
                eventually(lambda asker=asker, topic=topic: _is_led(asker, topic))

    def fill(self, topic: str, partition: int, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        failed: list[object] = []
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(WAIT_S) == 0
        assert failed == []

    def bounce(self, broker: BrokerProcess, *, is_clean: bool) -> None:
        """Ends a broker, and returns when it serves again."""
        if is_clean:
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()

    def roll(self, *, is_clean: bool) -> None:
        """Each of them, one after the other."""
        for broker in self.brokers:
            self.bounce(broker, is_clean=is_clean)

    def lose_and_find(self, broker: BrokerProcess) -> None:
        """Kills a broker, and starts it when its session has ended: nobody leads meanwhile."""
        broker.kill()
        others = [one.bootstrap for one in self.brokers if one is not broker]
        admin = AdminClient({"bootstrap.servers": ",".join(others)})
        eventually(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) < len(self.brokers))
        broker.start()

    def check(self) -> None:
        """Nobody fell over anything."""
        for process in (self.controller, *self.brokers):
            assert process.running
            assert "Traceback" not in process.log_text(), process.log_text()[-4000:]


@contextmanager
def bounced_cluster(
    folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[BouncedCluster]:
    controller = ControllerProcess(folder / "controller", broker_session_timeout_ms="6000")
    brokers = [
        BrokerProcess(
            folder / f"broker-{number}",
            settings={
                **SETTINGS,
                **(settings or {}),
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": controller.bootstrap,
            },
        )
        for number in (1, 2, 3)
    ]
    try:
        controller.start()
        for broker in brokers:
            broker.start()
        cluster = BouncedCluster(controller, brokers)
        yield cluster
        cluster.check()
    finally:
        for process in (*brokers, controller):
            process.kill()


def _is_led(admin: AdminClient, topic: str) -> bool:
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return bool(found) and all(one.leader >= 0 for one in found.values())

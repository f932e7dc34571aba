"""A cluster in simulated worlds: what was acknowledged holds, and what `watch.py` says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from strandline.storage.errors import StrandlineError
from strandline.storage.records.batch.record import Record, encode_batch
from tests.sim.cluster import World, play
from tests.sim.several.archive import late_deletion
from tests.sim.several.cluster import VirtualCluster
from tests.sim.several.scenarios import (
    Clients,
    groups,
    minima,
    play_scenario,
    records,
    transactions,
)
from tests.sim.several.watch import SESSION_S, Watch
from tests.support.broker import REPOSITORY
from tests.support.forked import PYTHON_PATH
from tests.support.heavy import first

SEEDS = range(40)


# The first world is played twice by those who look at the trace.
@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, SEEDS[1:]))
@pytest.mark.parametrize("clients", [records, transactions, groups])
def test_what_clients_were_told_holds_whatever_happens_to_processes_and_links(
    clients: Clients, seed: int, tmp_path: Path
) -> None:
    play_scenario(seed, tmp_path, clients)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(2, SEEDS))
def test_no_acknowledged_record_of_three_replicas_is_lost_and_their_logs_are_the_same(
    seed: int, tmp_path: Path
) -> None:
    play_scenario(seed, tmp_path, records, replicas=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_no_acknowledged_record_is_lost_while_its_minimum_in_sync_is_altered(
    seed: int, tmp_path: Path
) -> None:
    play_scenario(
        seed, tmp_path, minima, troubles=8, only=("slow link", "slow link", "apart"), replicas=3
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(0, SEEDS))
@pytest.mark.parametrize("clients", [transactions, groups])
def test_coordinators_of_three_replicas_keep_what_they_told(
    clients: Clients, seed: int, tmp_path: Path
) -> None:
    play_scenario(seed, tmp_path, clients, replicas=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_nothing_is_lost_with_the_power_of_one_broker_though_nothing_is_synced(
    seed: int, tmp_path: Path
) -> None:
    play_scenario(
        seed,
        tmp_path,
        records,
        only=("power alone", "power alone", "kill", "pause", "apart"),
        replicas=3,
        is_synced=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_a_log_that_lost_its_newest_records_does_not_lead_though_it_is_back_first(
    seed: int, tmp_path: Path
) -> None:
    play_scenario(
        seed, tmp_path, records, troubles=1, only=("last one",), replicas=3, is_synced=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_nothing_is_archived_before_it_is_committed(seed: int, tmp_path: Path) -> None:
    play_scenario(seed, tmp_path, records, replicas=3, is_archived=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_a_late_deletion_of_an_earlier_leader_takes_nothing_that_is_kept_now(
    seed: int, tmp_path: Path
) -> None:
    play_scenario(seed, tmp_path, late_deletion, troubles=0, replicas=3, is_archived=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(3)))
@pytest.mark.parametrize("clients", [records, transactions, groups])
def test_two_runs_of_a_seed_leave_the_same_trace(
    clients: Clients, seed: int, tmp_path: Path
) -> None:
    one, again = (play_scenario(seed, tmp_path / str(number), clients) for number in range(2))
    assert all(event == same for event, same in zip(one.trace, again.trace, strict=False))
    assert len(one.trace) == len(again.trace)


# Prints what tells two traces apart.
PLAY = """
import sys, zlib
from pathlib import Path
from tests.sim.several.scenarios import play_scenario, transactions
world = play_scenario(7, Path(sys.argv[1]), transactions, troubles=1)
print(len(world.trace), zlib.crc32(repr(world.trace).encode()))
"""


@pytest.mark.slow
def test_another_process_leaves_the_same_trace_if_its_sets_have_the_same_order(
    tmp_path: Path,
) -> None:
    def told(number: int) -> str:
        # Folders of different names: none may be in a trace.
        played = subprocess.run(
            [sys.executable, "-c", PLAY, str(tmp_path / ("x" * (number + 1)))],
            cwd=REPOSITORY,
            env={**os.environ, **PYTHON_PATH, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return played.stdout

    assert told(0) == told(1)


@pytest.mark.slow
def test_who_makes_a_topic_on_the_way_is_not_sent_to_leaders_that_do_not_know_it(
    tmp_path: Path,
) -> None:
    """What the first of several requests in flight is refused comes behind the others."""

    async def scenario(world: World) -> None:
        cluster = VirtualCluster(world)
        await cluster.start()
        asked, *others = cluster.brokers
        for other in others:
            world.network.link(cluster.controller.host, other.host).delay_s = (0.06, 0.06)
        client = world.client(asked)
        names = [f"t{number}" for number in range(6)]
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=True,
        )
        topics = (await client.ask(request, 12)).topics
        while any(topic.error_code for topic in topics):
            # Kafka's retry.backoff.ms.
            await asyncio.sleep(0.1)
            topics = (await client.ask(request, 12)).topics
        leaders = {topic.name: topic.partitions[0].leader_id for topic in topics}
        assert len(set(leaders.values())) == 3
        record = Record(offset=0, timestamp_ms=world.clock.now_ms(), key=None, value=b"v")
        for broker in (*others, asked):
            for name in [one for one in names if leaders[one] == broker.node_id]:
                await world.client(broker).produce(name, encode_batch([record]))
        await cluster.stop()

    play(1, tmp_path, scenario)


@pytest.mark.slow
def test_a_killed_broker_is_taken_again_at_once_and_another_process_is_not_while_it_lives(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        watch = Watch(world)
        cluster = VirtualCluster(world)
        watch.add(cluster)
        with watch.watching():
            await cluster.start()
            first, second, _ = cluster.brokers
            await first.kill()
            killed_s = world.loop.time()
            await first.start()
            assert world.loop.time() - killed_s < SESSION_S / 4
            double = cluster.seat(
                50,
                node_id=str(second.node_id),
                initial_broker_registration_timeout_ms="30000",
            )
            # Its heartbeats come by another connection meanwhile.
            world.network.reset_some(1.0)
            with pytest.raises(StrandlineError, match=r"another process has this node\.id"):
                await double.start()
            await double.kill()
            await cluster.stop()
        watch.check()

    play(1, tmp_path, scenario)


@pytest.mark.slow
def test_a_cluster_whose_processes_were_all_killed_is_back_before_a_session_ends(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        watch = Watch(world)
        cluster = VirtualCluster(world)
        watch.add(cluster)
        with watch.watching():
            await cluster.start()
            nodes = (cluster.controller, *cluster.brokers)
            await asyncio.gather(*(node.kill() for node in nodes))
            killed_s = world.loop.time()
            await asyncio.gather(*(node.start() for node in nodes))
            assert world.loop.time() - killed_s < SESSION_S / 4
            await cluster.stop()
        watch.check()

    play(1, tmp_path, scenario)


@pytest.mark.slow
def test_a_controller_that_stood_still_fences_nobody_for_that(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        watch = Watch(world)
        cluster = VirtualCluster(world)
        watch.add(cluster)
        with watch.watching():
            await cluster.start()
            cluster.controller.pause()
            await asyncio.sleep(60)
            cluster.controller.go_on()
            await asyncio.sleep(60)
            image = watch.image_of(cluster.controller.process)
            assert [one.fenced for one in image.brokers.values()] == [False] * 3
            # One that stands still itself is fenced.
            cluster.brokers[0].pause()
            await asyncio.sleep(20)
            image = watch.image_of(cluster.controller.process)
            assert [one.broker_id for one in image.brokers.values() if one.fenced] == [1]
            cluster.brokers[0].go_on()
            await asyncio.sleep(20)
            image = watch.image_of(cluster.controller.process)
            assert [one.fenced for one in image.brokers.values()] == [False] * 3
            await cluster.stop()
        watch.check()

    play(1, tmp_path, scenario)

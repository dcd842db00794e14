"""A cluster under Patroni loses its leader under load, again and again: no acknowledged add is lost, no job
with delivery at_most_once runs twice, and clients and workers find the new leader by themselves."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.failover.clients import SEED
from tests.failover.cluster import Cluster, missing
from tests.failover.load import Insider, Load, found
from tests.support.checker import summary

ROUNDS = int(os.environ.get("PYWORKER_FAILOVERS", "2"))
WHY_NOT = missing()
pytestmark = [pytest.mark.torture, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]


def switch(cluster: Cluster, load: Load) -> None:
    """As before the maintenance of a server."""
    since = load.lost("switchover")
    cluster.switch_over()
    load.recovered("switchover", since)


def kill_machine(cluster: Cluster, load: Load) -> None:
    """Patroni, too: the others have to wait until its key in etcd runs out."""
    node = cluster.leads()
    since = load.lost("machine killed")
    node.kill(node.processes())
    cluster.until_led_by_another(node)
    load.recovered("machine killed", since)
    node.start()


def kill_server(cluster: Cluster, load: Load) -> None:
    """PostgreSQL alone: its Patroni gives the key away."""
    node = cluster.leads()
    since = load.lost("server killed")
    node.kill(node.server_processes())
    cluster.until_led_by_another(node)
    load.recovered("server killed", since)


def freeze(cluster: Cluster, load: Load) -> None:
    """The leader stands still until another one leads. It wakes up and does not know: first its PostgreSQL,
    then its Patroni, which tells it to follow."""
    with load.looking:
        node = cluster.leads()
        insider = Insider(node.url)
        frozen = node.processes()
        since = load.lost("machine frozen")
        node.signal(signal.SIGSTOP, frozen)
        cluster.until_led_by_another(node)
        load.recovered("machine frozen", since)
        load.lost("machine awake")
        insider.start()
        node.signal(signal.SIGCONT, frozen[1:])
        cluster.until("the old leader is asked to add", lambda: insider.tried > 0)
        time.sleep(3)  # no event tells that there is no answer
        assert insider.acknowledged == [], "the leader of before has acknowledged an add"
        node.signal(signal.SIGCONT, frozen)
        insider.join(60)
        assert not insider.is_alive(), cluster.report()
        assert insider.acknowledged == []
        cluster.until_whole()


FAULTS: list[Callable[[Cluster, Load], None]] = [switch, kill_machine, kill_server, freeze]


def test_nothing_is_lost_or_done_twice_when_a_synchronous_standby_takes_over(
    stack: ExitStack, history: Path, tmp_path: Path
) -> None:
    print(f"PYWORKER_SEED={SEED}")
    cluster = Cluster(stack, synchronous=True)
    load = Load(stack, cluster, history, tmp_path)
    faults = FAULTS * ROUNDS
    random.Random(SEED).shuffle(faults)
    for fault in faults:
        fault(cluster, load)
        cluster.until_whole()
        load.go_on()
    events = load.finish()
    print(summary(events), load.figures(events), sep="\n")
    assert found(events) == []

"""One contender under the menu, for a given time; what happened becomes a history."""

from __future__ import annotations

import itertools
import os
import platform
import random
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg

from tests.reliability import clients, menu
from tests.reliability.clients import Producer, Workers
from tests.reliability.contenders import CONTENDERS, Contender, command, version
from tests.reliability.history import Recorder, lines, merged, write
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

DRAIN = 30.0  # seconds at most, after the last fault and the last add, until all jobs are done
WARM_UP = 60.0  # seconds at most, until the first worker is up


def shown(contender: Contender) -> str:
    """The worker's command, without this machine's directories."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command(contender, "work"))


class Run:
    def __init__(
        self, stack: ExitStack, contender: Contender, directory: Path, seed: str, pace: float
    ) -> None:
        self.contender, self.directory = contender, directory
        self.record = Recorder(directory / "harness.jsonl")
        self.server = Postgres(stack, max_connections="200")
        self.rng = random.Random(f"{seed} {contender.name}")
        network = Proxy(self.server.url)
        stack.callback(network.close)
        url = f"postgresql://postgres@127.0.0.1:{network.port}/postgres"
        launch = partial(clients.start, contender, url=url, directory=directory)
        setup = launch("setup")
        if setup.wait(120):
            raise RuntimeError(f"{contender.name}: setup failed; see {directory}/setup.log")
        self.server.execute("create table public.effects (op integer, attempt bigint)")
        self.workers = Workers(partial(launch, "work"), 2, self.record)
        stack.callback(self.workers.end)
        self._await(lambda: sum(1 for event in self.runs() if event["what"] == "process") >= 2, WARM_UP)
        pipes = {"stdin": clients.subprocess.PIPE, "stdout": clients.subprocess.PIPE}
        numbers = itertools.count(1)
        self.producers = [
            Producer(n, contender, partial(launch, "produce", **pipes), self.record, seed, pace, numbers)
            for n in range(1, 4)
        ]
        stack.callback(lambda: [producer.join() for producer in self.producers])
        stack.callback(lambda: [producer.stop() for producer in self.producers])
        self._keys = 0
        self._next_key = time.monotonic()
        self.scene = menu.Scene(
            self.server, network, self.workers, self.producers, self.record, self.rng, self.watch,
            self.running,
        )  # fmt: skip

    def runs(self) -> list[dict]:
        path = self.directory / "runs.jsonl"
        return list(lines(path)) if path.exists() else []

    def running(self, processes: list[int]) -> int:
        """How many handlers have begun in these processes, and have not ended."""
        there = [event for event in self.runs() if event["process"] in processes]
        ended = {(event["op"], event["attempt"]) for event in there if event["what"] == "end"}
        begun = {(event["op"], event["attempt"]) for event in there if event["what"] == "start"}
        return len(begun - ended)

    def _await(self, condition: object, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            if time.monotonic() > until:
                return False
            self.workers.supervise()
            time.sleep(0.1)
        return True

    def watch(self, seconds: float) -> None:
        """Each four seconds all producers are asked for the same unique job."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.workers.supervise()
            if time.monotonic() >= self._next_key and "unique" in self.contender.kinds:
                self._next_key = time.monotonic() + 4
                self._keys += 1
                for producer in self.producers:
                    producer.unique.put(f"u{self._keys}")
            time.sleep(min(left, 0.1))

    def faults(self, seconds: float, only: list[str] | None, haste: float) -> None:
        until = time.monotonic() + seconds
        self.watch(2)
        if only is None and seconds > 2 * menu.FREEZE:
            menu.frozen_worker(self.scene)
            self.watch(4)
        chosen = [each for each in menu.ROUND if not only or each[0] in [menu.NAMES[name] for name in only]]
        while time.monotonic() < until:
            for fault, pause in chosen:
                if time.monotonic() < until or only:  # what was named is done at least once
                    fault(self.scene)
                    self.watch(pause * haste * self.rng.uniform(0.8, 1.2))

    def finish(self, drain: float) -> None:
        for producer in self.producers:
            producer.stop()
        for producer in self.producers:
            producer.join()
        wanted = {op for producer in self.producers for op in producer.answered}
        self._await(lambda: wanted <= {event["op"] for event in self.runs() if event["what"] == "end"}, drain)
        self.watch(1)  # what is done twice is done now
        with psycopg.connect(self.server.url, autocommit=True) as conn:
            for op, state, live in conn.execute(self.contender.left.encode()):
                self.record("left", op=op, state=state, live=live)
            for op, attempt in conn.execute("select op, attempt from public.effects"):
                self.record("effect", op=op, attempt=attempt)
        self.record("finish")


def run(
    name: str, seconds: float, seed: str, out: Path, only: list[str] | None = None, drain: float = DRAIN,
    pace: float = 0.2, haste: float = 1.0,
) -> Path:  # fmt: skip
    """Writes OUT/NAME.jsonl.gz; the logs of its programs are in OUT/NAME.logs."""
    contender, logs = CONTENDERS[name], out / f"{name}.logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*"):
        old.unlink()
    about = {
        "contender": name,
        "version": version(contender),
        "settings": contender.settings,
        "recovery": contender.recovery,
        "within": contender.within,
        "kinds": contender.kinds,
        "seed": seed,
        "seconds": seconds,
        "command": f"python -m tests.reliability run --only {name} --seconds {seconds:g} --seed {seed}",
        "worker": shown(contender),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        directory = Path(place)
        stack.callback(lambda: [shutil.copy(log, logs) for log in directory.glob("*.log")])
        record = Recorder(directory / "about.jsonl")
        record("about", **about)
        record.close()
        it = Run(stack, contender, directory, seed, pace)
        ((postgres,),) = it.server.execute("show server_version")
        it.faults(max(seconds - drain, 5), only, haste)
        it.finish(drain)
        events = merged(directory / file for file in ("about.jsonl", "harness.jsonl", "runs.jsonl"))
        events[0]["postgres"] = postgres
        write([event for event in events if event["t"] <= at_finish(events)], out / f"{name}.jsonl.gz")
    return out / f"{name}.jsonl.gz"


def at_finish(events: list[dict]) -> float:
    return next(event["t"] for event in events if event["what"] == "finish")

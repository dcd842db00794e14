"""The server's clock jumps, forward and back, by up to ten minutes at a time. Leases may end early or late,
and jobs may start early or late; none is lost, none that may run once runs twice, no tick is lost or doubled,
and no rate is exceeded by the clock that the server sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.torture.faults import RARE, USUAL, Faults
from tests.torture.servers import WithJumpingClock
from tests.torture.world import World

pytestmark = pytest.mark.torture
FAR = 900.0  # seconds, at most, from the real time


class Jumps(Faults):
    _server: WithJumpingClock

    def jump(self) -> None:
        by = self._rng.choice([0.5, 5, 30, 120, 600])
        offset = self._server.offset + self._rng.choice([-1, 1]) * self._rng.uniform(by / 10, by)
        self.jump_to(max(-FAR, min(FAR, offset)))

    def jump_to(self, offset: float) -> None:
        self._server.jump_to(offset)
        self._record("jump", offset=offset)


class JumpingWorld(World):
    server: Any
    faults: Any

    def make_faults(self) -> Faults:
        return Jumps(self.server, self.network, self.crew, self.seed)

    def calm(self) -> None:
        """What is due by the latest time that there was is due again."""
        self.faults.jump_to(self.server.furthest)
        super().calm()


def test_when_the_servers_clock_jumps_nothing_is_lost_and_nothing_happens_twice(
    make_world: Callable[..., World],
) -> None:
    usual = [*USUAL, *["jump"] * len(USUAL)]
    world = make_world(JumpingWorld, server=WithJumpingClock, usual=usual, rare=RARE)
    for uvloop in (False, True):
        world.crew.python(world.network.dsn, uvloop=uvloop)
    world.run()

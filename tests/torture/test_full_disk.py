"""The server's disk is full for some seconds, again and again. Statements fail, or the server crashes and
does not recover before there is room; then all goes on, and the record shows that nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.torture.faults import Faults
from tests.torture.servers import LogElsewhere, OnSmallDisk
from tests.torture.world import World

pytestmark = pytest.mark.torture


class FullDisks(Faults):
    _server: OnSmallDisk

    def full(self) -> None:
        """A worker may die meanwhile."""
        began = time.time()
        self._server.fill()
        try:
            time.sleep(self._rng.uniform(0.3, 2))
            if self._rng.random() < 0.5:
                self._rng.choice([self.parent, self.child])()
            time.sleep(self._rng.uniform(0.3, 2))
        finally:
            self._server.free()
        revived = self._server.revive()
        if revived or not self._server.log_elsewhere:  # it may have crashed and recovered by itself
            self._record("stop", how="full disk", t=began)


class SmallWorld(World):
    def make_faults(self) -> Faults:
        return FullDisks(self.server, self.network, self.crew, self.seed)


@pytest.mark.parametrize("server", [LogElsewhere, OnSmallDisk], ids=["tables", "log"])
def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(
    make_world: Callable[..., World], server: type[OnSmallDisk]
) -> None:
    usual = ["full", "full", "parent", "child", "backend", "cut"]
    world = make_world(SmallWorld, server=server, usual=usual, rare=["server"])
    for uvloop in (False, True):
        world.crew.python(world.network.dsn, uvloop=uvloop)
    world.run()

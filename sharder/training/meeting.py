"""Where all processes meet before a step: to stop at the same one, and to see who comes last."""

from __future__ import annotations

import logging
import time

from sharder.parallel.agreement import Hosts
from sharder.parallel.straggler import Straggler
from sharder.training.clock import PEERS, Clock

log = logging.getLogger(__name__)

STOP = "stop"


class Meeting:
    def __init__(self, hosts: Hosts, clock: Clock):
        self._hosts, self._clock = hosts, clock
        self._straggler = Straggler()
        self._waited_s, self._met = 0.0, time.monotonic()

    def all_go_on(self, stop: bool) -> bool:
        """False when any process was told to stop."""
        came = time.monotonic()
        with self._clock.host(PEERS):
            texts = self._hosts.exchange("batch ready", STOP if stop else f"{self._waited_s:.6f}")
        before, self._met = self._met, time.monotonic()
        self._waited_s = self._met - came
        if STOP in texts:
            return False
        if self._hosts.count > 1:
            line = self._straggler.look([float(text) for text in texts], self._met - before)
            if line is not None and self._hosts.index == 0:
                log.warning(line)
        return True

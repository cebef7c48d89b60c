"""Joins the processes of a run, and leaves them again: in order when all went well, at once when it did not."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import jax

from sharder.config import Config, LaunchConfig
from sharder.errors import EXIT_USER_ERROR, UserError
from sharder.parallel import rollcall
from sharder.parallel.agreement import Hosts, JaxStore
from sharder.parallel.processes import (
    ADDRESS,
    COUNT,
    INDEX,
    OPEN_MPI,
    SLURM,
    Membership,
    membership,
    split_address,
)

BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"
# For several processes, where the user has not set the variable of the same name in capitals. jax's preemption service
# would take SIGTERM for itself: our own handler, or the end of the process, would never come.
SETTINGS = {"jax_cpu_collectives_implementation": "gloo", "jax_enable_preemption_service": False}
ABORT_S = 60.0  # jax is given this much longer than we allow, since it aborts the process when its time is up
GOODBYE_S = 3.0  # for the word that we end to get through, and for process 0 to let the others end first

_joined = Hosts()


def join(config: Config, environ: Mapping[str, str], say: Callable[[str], None]) -> Hosts:
    """Returns when all processes are there and know one another; with one process it touches nothing.

    Before anything else of jax: a backend that has started knows only its own devices.
    """
    global _joined
    us, why_single = membership(environ)
    if why_single:
        say(why_single)
    local_devices = None
    if us.several and us.coordinator is None:
        us, local_devices = _detected(us, config.launch)
    if us.count == 1:
        _joined = Hosts()
        return _joined
    launch = config.launch
    rollcall.call(us, timeout_s=launch.start_timeout_s, late_after_s=launch.late_after_s, say=say)
    _initialize(us, local_devices, launch.start_timeout_s, environ)
    _joined = Hosts(
        us.index,
        us.count,
        JaxStore(),
        timeout_s=launch.barrier_timeout_s,
        late_after_s=launch.late_after_s,
        say=say,
    )
    say(f"process {us.index} of {us.count}, coordinator {us.coordinator} ({us.source})")
    return _joined


def leave(code: int) -> None:
    """The last call of a worker. Returns with code 0, and with one process; otherwise it ends the process at once.

    After a success all leave together: whoever went first would look dead to the others. A UserError when they do not
    come is a failure like any other. After a failure nobody is waited for, and no exit handler of jax gets to hang in a
    barrier that the others never reach: what the caller wants kept is closed before.
    """
    global _joined
    if _joined.count == 1:
        return
    if code == 0:
        _joined.barrier("end")
        jax.distributed.shutdown()
        _joined = Hosts()
        return
    _say_goodbye(_joined, code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _say_goodbye(hosts: Hosts, code: int) -> None:
    """So that the others end with a line of their own: jax aborts them when process 0 is gone.

    In a thread, because a coordinator that is gone answers nothing.
    """

    def goodbye() -> None:
        with suppress(RuntimeError):
            hosts.say_ended(code)
            while hosts.index == 0 and not hosts.all_others_ended():
                time.sleep(0.05)

    thread = threading.Thread(target=goodbye, daemon=True)
    thread.start()
    thread.join(GOODBYE_S)


def _initialize(us: Membership, local_devices: list[int] | None, timeout_s: float, environ: Mapping[str, str]) -> None:
    assert us.coordinator is not None
    bind = environ.get(BIND_VARIABLE)
    if bind is None and rollcall.is_loopback(split_address(us.coordinator)[0]):
        bind = us.coordinator  # jax would listen to the network
    for name, value in SETTINGS.items():
        if name.upper() not in environ:
            jax.config.update(name, value)
    with _ended_before_jax_aborts(us, timeout_s):
        try:
            jax.distributed.initialize(
                coordinator_address=us.coordinator,
                num_processes=us.count,
                process_id=us.index,
                local_device_ids=local_devices,
                cluster_detection_method="deactivate",  # everything is known by now
                initialization_timeout=math.ceil(timeout_s + ABORT_S),
                coordinator_bind_address=bind,
            )
        except (RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"process {us.index} of {us.count} could not join at {us.coordinator} ({ADDRESS}): {error}"
            ) from error


@contextmanager
def _ended_before_jax_aborts(us: Membership, timeout_s: float) -> Iterator[None]:
    """One line instead of a stack trace in C++, when someone answered the roll call and died before joining."""

    def end() -> None:
        print(
            f"error: process {us.index} of {us.count} has not joined at {us.coordinator} after {timeout_s:g} s "
            f"({rollcall.TIMEOUT_KEY}), though all had answered: see the logs of the others",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_USER_ERROR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _detected(us: Membership, launch: LaunchConfig) -> tuple[Membership, list[int] | None]:
    """The rest of what a launcher that jax knows has left to find: the coordinator, and whose devices are whose.

    jax has no public name for it short of `initialize`, which would not let us call the roll first.
    """
    from jax._src import clusters

    method = {SLURM: "slurm", OPEN_MPI: "ompi"}.get(us.source)
    told_by_hand = f"set {ADDRESS}, {COUNT} and {INDEX} instead"
    try:
        address, count, index, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, method, math.ceil(launch.start_timeout_s)
        )
    except Exception as error:  # each launcher fails in its own way, over the network too
        raise UserError(
            f"started by {us.source}, but jax cannot find the coordinator ({error}); {told_by_hand}"
        ) from error
    if address is None or count is None or index is None:
        raise UserError(f"started by {us.source}, but jax {jax.__version__} finds no coordinator; {told_by_hand}")
    us = dataclasses.replace(us, coordinator=address, count=count, index=index)
    return us, None if devices is None else list(devices)

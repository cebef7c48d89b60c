"""Joining and leaving: what jax is told, and two real processes that meet, add up, wait, fail and leave."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel import distributed, rollcall
from sharder.parallel.processes import Membership

SECONDS = 120.0
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
TOLD = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the roll call and jax would have been told."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(rollcall, "call", lambda us, **limits: seen.update(us=us, **limits))
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: seen.update(arguments))
    monkeypatch.setattr(distributed, "JaxStore", object)
    monkeypatch.setattr(distributed, "_joined", distributed.Hosts())
    for name in {*SRUN, *TOLD}:
        monkeypatch.delenv(name, raising=False)
    return seen


def test_one_process_touches_nothing(recorded: dict[str, Any]) -> None:
    told: list[str] = []
    hosts = distributed.join(Config(), {}, told.append)
    assert (hosts.index, hosts.count, told, recorded) == (0, 1, [], {})
    distributed.leave(0)
    distributed.leave(2)  # an ordinary exit follows


def test_a_shell_inside_a_slurm_job_is_one_process_and_says_why(recorded: dict[str, Any]) -> None:
    told: list[str] = []
    hosts = distributed.join(Config(), {"SLURM_JOB_ID": "77"}, told.append)
    assert (hosts.count, recorded) == (1, {})
    assert [line.startswith("single process: SLURM_JOB_ID is set, but SLURM_STEP_NODELIST") for line in told] == [True]


def test_jax_is_told_what_the_variables_say(recorded: dict[str, Any]) -> None:
    config, told = Config(), []
    config.launch.start_timeout_s, config.launch.late_after_s = 90.0, 7.0
    hosts = distributed.join(config, TOLD, told.append)
    assert (hosts.index, hosts.count, hosts.timeout_s, hosts.late_after_s) == (1, 2, 1800.0, 7.0)
    assert told == ["process 1 of 2, coordinator node1:1234 (JAX_ variables)"]
    assert recorded == {
        "us": Membership(1, 2, "node1:1234", "JAX_ variables"),
        "timeout_s": 90.0,
        "late_after_s": 7.0,
        "say": told.append,
        "coordinator_address": "node1:1234",
        "num_processes": 2,
        "process_id": 1,
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 150,
        "coordinator_bind_address": None,
    }


def test_a_coordinator_on_this_machine_does_not_listen_to_the_network(recorded: dict[str, Any]) -> None:
    local = {**TOLD, "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1234"}
    distributed.join(Config(), local, print)
    assert recorded["coordinator_bind_address"] == "127.0.0.1:1234"
    distributed.join(Config(), {**local, "JAX_COORDINATOR_BIND_ADDRESS": "[::]:1234"}, print)
    assert recorded["coordinator_bind_address"] == "[::]:1234"


def test_jax_finds_the_coordinator_of_a_slurm_job_and_the_roll_is_called_there(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    distributed.join(Config(), SRUN, print)
    port = 77 + 65535 - 2**12 + 1
    assert recorded["us"] == Membership(1, 2, f"node001:{port}", "Slurm")
    assert (recorded["coordinator_address"], recorded["process_id"]) == (f"node001:{port}", 1)
    assert recorded["local_device_ids"] == [0]  # the first device of its host


def test_a_launcher_whose_coordinator_jax_does_not_find_is_one_line(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI 5 does not say where process 0 is: jax 0.10 knows nothing of it, jax 0.12 needs mpi4py."""
    mpirun = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    for name, value in mpirun.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        distributed.join(Config(), mpirun, print)
    assert str(caught.value).startswith("started by Open MPI, but jax ")
    assert str(caught.value).endswith("; set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID instead")
    assert recorded == {}


@pytest.mark.parametrize(("parallelism", "count"), [(1, 1), (8, 8)])
def test_kubernetes_says_how_many_there_are(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, parallelism: int, count: int
) -> None:
    """The pods of an indexed Job that runs them one at a time have an index too, and are no processes of one run."""
    us = Membership(5, 0, None, "Kubernetes")
    monkeypatch.setattr(distributed, "membership", lambda environ: (us, None))
    found = ("job-0.pods:55527", parallelism, 5, None)
    monkeypatch.setattr(jax._src.clusters.ClusterEnv, "auto_detect_unset_distributed_params", lambda *_: found)
    assert distributed.join(Config(), {}, print).count == count
    assert bool(recorded) is (count > 1)


def test_an_error_of_jax_is_one_line(recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**arguments: object) -> None:
        raise RuntimeError("jax.distributed.initialize() must be called before\n  any JAX calls")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(UserError) as caught:
        distributed.join(Config(), TOLD, print)
    assert str(caught.value) == (
        "process 1 of 2 could not join at node1:1234 (JAX_COORDINATOR_ADDRESS): jax.distributed.initialize() must be "
        "called before any JAX calls"
    )


@pytest.mark.multiprocess
def test_who_answered_the_roll_call_and_then_does_not_join_costs_a_line_and_no_stack_trace() -> None:
    """jax would abort the process."""
    script = """
import sys
from sharder.config import Config
from sharder.parallel import distributed, rollcall
rollcall.call = lambda us, **limits: None
config = Config()
config.launch.start_timeout_s = 1.0
distributed.join(config, dict(pair.split("=") for pair in sys.argv[1:]), print)
"""
    with rollcall.reserve_port() as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        pairs = [f"{name}={value}" for name, value in {**TOLD, "JAX_COORDINATOR_ADDRESS": address}.items()]
        done = subprocess.run(
            [sys.executable, "-c", script, *pairs], capture_output=True, text=True, check=False, timeout=SECONDS
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"error: process 1 of 2 has not joined at {address} after 1 s (launch.start_timeout_s), though all had "
        "answered: see the logs of the others"
    )


WORKER = """
import os, signal, sys, time
from pathlib import Path
from sharder.config import Config
from sharder.errors import Fault, UserError
from sharder.parallel.distributed import join, leave

folder = Path(sys.argv[1])
config = Config()
config.launch.start_timeout_s, config.launch.late_after_s = 60.0, 0.5

def tell(line):
    print(line, flush=True)
    if str(line).startswith("waiting for process 1"):
        (folder / "named").touch()

def until(name):
    while not (folder / name).exists():
        time.sleep(0.02)

code = 0
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
hosts = join(config, os.environ, tell)
try:
{body}
except (Fault, UserError) as error:
    tell(f"error: {{error}}")
    (folder / f"failed {{hosts.index}}").touch()
    code = 2
leave(code)
tell("left in order")
"""


def run_two(folder: Path, body: str) -> tuple[list[int], list[str]]:
    """Exit codes and output of two processes that run `body`, on one simulated device each."""
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    with rollcall.reserve_port() as reserved:
        environ = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{reserved.getsockname()[1]}",
            "JAX_NUM_PROCESSES": "2",
        }
        environ.pop("XLA_FLAGS", None)
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER.format(body=indented), str(folder)],
                env={**environ, "JAX_PROCESS_ID": str(index)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in (1, 0)
        ]
        try:
            outputs = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    return [worker.returncode for worker in workers[::-1]], outputs[::-1]


@pytest.mark.multiprocess
def test_two_processes_add_up_meet_and_leave(tmp_path: Path) -> None:
    codes, outputs = run_two(
        tmp_path,
        """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "all")
mine = np.array([10.0 ** hosts.index], np.float32)
everyones = jax.make_array_from_process_local_data(NamedSharding(mesh, P("all")), mine)
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=P("all"), out_specs=P()))
tell(f"sum {total(everyones).item():g} over {jax.device_count()} devices")
os.kill(os.getpid(), signal.SIGTERM)
tell(f"SIGTERM comes to us: {signals == [signal.SIGTERM]}")
tell(hosts.exchange("who", f"I am {hosts.index}"))
tell(hosts.decide("step", "12" if hosts.index == 0 else None))
if hosts.index == 1:
    until("named")
hosts.barrier("batch 7")
for step in range(100):
    hosts.barrier(f"batch {step}")
from jax._src import distributed
if hosts.index == 0:
    keys = distributed.global_state.client.key_value_dir_get("sharder/")
    tell(f"few keys: {len(keys) <= 4}")  # of the last meeting, and perhaps process 1 is at the next
""",
    )
    assert codes == [0, 0], outputs
    for output in outputs:
        assert "sum 11 over 2 devices\nSIGTERM comes to us: True\n['I am 0', 'I am 1']\n12\n" in output
        assert output.endswith("left in order\n")
    assert "waiting for process 1 at 'batch 7': not there after" in outputs[0]
    assert "process 1 arrived at 'batch 7' after" in outputs[0]
    assert "few keys: True" in outputs[0]


@pytest.mark.multiprocess
def test_a_process_that_does_not_come_in_time_is_named_and_both_end(tmp_path: Path) -> None:
    codes, outputs = run_two(
        tmp_path,
        """
if hosts.index == 1:
    until("failed 0")
hosts.barrier("restored", timeout_s=1.0)
""",
    )
    assert codes == [2, 2], outputs
    for output in outputs:
        assert output.endswith("error: process 1 has not reached 'restored' after 1 s\n")


@pytest.mark.multiprocess
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_process_ends_at_once_and_the_other_says_why_it_ends(tmp_path: Path, failing: int) -> None:
    codes, outputs = run_two(
        tmp_path,
        f"""
hosts.barrier("start")
if hosts.index == {failing}:
    print("lost?", end="")
    leave(3)
hosts.barrier("batch 7")
""",
    )
    assert codes[failing] == 3, outputs
    assert outputs[failing].endswith("lost?")
    assert codes[1 - failing] == 2, outputs
    expected = f"error: process {failing} ended with exit code 3 before reaching 'batch 7': its log says why\n"
    assert outputs[1 - failing].endswith(expected)

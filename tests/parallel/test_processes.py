"""Which process of how many, read from environments as users and launchers leave them."""

import pytest

from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel import processes
from sharder.parallel.processes import JAX, Membership, check_part, membership, named, split_address

TOLD = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLICE = {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "1"}
JOB = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "5"}
SINGLE = Membership(0, 1, None, "single")


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, SINGLE),
        ({"HOME": "/root", "JAX_PLATFORMS": "cpu"}, SINGLE),
        (TOLD, Membership(3, 4, "node1:1234", "JAX_ variables")),
        ({**TOLD, "SHARDER_ATTEMPT": "2"}, Membership(3, 4, "node1:1234", "JAX_ variables", "2")),
        ({**TOLD, **SRUN}, Membership(3, 4, "node1:1234", "JAX_ variables")),
        ({**TOLD, "JAX_COORDINATOR_ADDRESS": "[::1]:80"}, Membership(3, 4, "[::1]:80", "JAX_ variables")),
        (dict.fromkeys(TOLD, ""), SINGLE),
        (SRUN, Membership(2, 4, None, "Slurm")),
        ({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, SINGLE),
        (without(SRUN, "SLURM_STEP_NUM_TASKS"), Membership(2, 4, None, "Slurm")),
        (MPIRUN, Membership(1, 2, None, "Open MPI")),
        ({**MPIRUN, **without(SRUN, "SLURM_STEP_NODELIST")}, Membership(1, 2, None, "Open MPI")),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, SINGLE),
        (SLICE, Membership(1, 4, None, "TPU pod")),
        ({**SLICE, "TPU_PROCESS_ADDRESSES": "a:1,b:1"}, Membership(1, 2, None, "TPU pod")),
        ({**SLICE, "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}, Membership(5, 8, None, "TPU pod")),
        ({**SLICE, **JOB}, Membership(1, 4, None, "TPU pod")),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, SINGLE),
    ],
)
def test_who_we_are(environ: dict[str, str], expected: Membership) -> None:
    assert membership(environ) == (expected, None)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"SLURM_JOB_ID": "77"},  # a shell by ssh
            "single process: SLURM_JOB_ID is set, but SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID "
            "are not, so this is no Slurm launch (srun sets them all)",
        ),
        (
            without(SRUN, "SLURM_STEP_NODELIST"),  # a batch script that does not use srun
            "single process: SLURM_JOB_ID, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID are set, but SLURM_STEP_NODELIST "
            "is not, so this is no Slurm launch (srun sets them all)",
        ),
        (
            {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # the shell that salloc gives
            "single process: SLURM_NTASKS is 4, but this step has one task; srun starts them all",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2"},
            "single process: OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_RANK are "
            "not, so this is no Open MPI launch (mpirun sets them all)",
        ),
        (
            {"TPU_WORKER_ID": "0"},
            "single process: TPU_WORKER_ID is set, but TPU_WORKER_HOSTNAMES is not, so this is no TPU pod launch "
            "(a TPU slice has both)",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "single process: KUBERNETES_SERVICE_HOST is set, but JOB_COMPLETION_INDEX is not, so this is no Kubernetes "
            "launch (a Job with completionMode: Indexed sets it)",
        ),
    ],
)
def test_part_of_a_launchers_variables_is_a_single_process_and_says_why(environ: dict[str, str], line: str) -> None:
    assert membership(environ) == (SINGLE, line)


def test_a_launch_by_another_launcher_counts_though_one_before_it_left_only_part() -> None:
    assert membership({"OMPI_COMM_WORLD_SIZE": "2", **SRUN}) == (Membership(2, 4, None, "Slurm"), None)


@pytest.mark.parametrize("installed", [True, False])
def test_an_indexed_job_needs_the_package_that_asks_kubernetes(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(processes, "_installed", {"kubernetes": installed}.get)
    who, line = membership(JOB)
    assert who == (Membership(5, 0, None, "Kubernetes") if installed else SINGLE)
    assert who.several is installed
    assert (line is None) is installed
    assert installed or "the package kubernetes is not installed" in str(line)


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        (
            without(TOLD, "JAX_NUM_PROCESSES"),
            "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID are set, but JAX_NUM_PROCESSES is not; set all three to run "
            "several processes, or none of them",
        ),
        (
            {**TOLD, "JAX_COORDINATOR_ADDRESS": "", "JAX_PROCESS_ID": ""},
            "JAX_NUM_PROCESSES is set, but JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID are not; set all three to run "
            "several processes, or none of them",
        ),
        ({**TOLD, "JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES: 'two' is not a whole number from 0 up"),
        ({**TOLD, "JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID: '-1' is not a whole number from 0 up"),
        ({**TOLD, "JAX_NUM_PROCESSES": "0"}, "JAX_NUM_PROCESSES: 0 processes; it must be 1 or more"),
        ({**TOLD, "JAX_PROCESS_ID": "4"}, "JAX_PROCESS_ID: 4 is outside 0..3, since JAX_NUM_PROCESSES is 4"),
        ({**SRUN, "SLURM_PROCID": "9"}, "SLURM_PROCID: 9 is outside 0..3, since SLURM_NTASKS is 4"),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE: 'x' is not a whole number from 0 up"),
        (
            {**SLICE, "TPU_WORKER_ID": "4"},
            "TPU_WORKER_ID 4 of 4 hosts, MEGASCALE_SLICE_ID 0 of 1 slices: each counts from 0 and must be below its "
            "number",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(environ: dict[str, str], error: str) -> None:
    with pytest.raises(UserError) as caught:
        membership(environ)
    assert str(caught.value) == error


@pytest.mark.parametrize("address", ["node1", "node1:", ":1234", "node1:0", "node1:65536", "node1:http"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UserError, match=r"is no host:port with a port from 1 to 65535"):
        membership({**TOLD, "JAX_COORDINATOR_ADDRESS": address})


def test_the_brackets_of_an_ipv6_address_are_not_its_host() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("node1:1234") == ("node1", 1234)


def test_processes_are_named_in_order_and_not_endlessly() -> None:
    assert named([1]) == "process 1"
    assert named({3, 1}) == "processes 1, 3"
    assert named(range(1, 64)).endswith(" 15, 16, ... and 47 more")


def placed(launch: str = "inline", fsdp: int = 4) -> Config:
    config = Config()
    config.launch.name, config.mesh.fsdp = launch, fsdp
    return config


@pytest.mark.parametrize(
    ("command", "config", "words"),
    [
        ("evaluate", placed(), "evaluate: found process 1 of several .JAX_ variables., allowed: one process"),
        ("train", placed("local"), "launch: found local in process 1 of several"),
        ("train", placed("supervised"), "launch: found supervised in process 1 of several"),
        ("train", placed(fsdp=2), "mesh: found 1 x 2 = 2 devices for 4 processes"),
    ],
)
def test_what_one_of_several_processes_cannot_do(command: str, config: Config, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_part(Membership(1, 4, "node:1", JAX), command, config)
    check_part(SINGLE, command, config)

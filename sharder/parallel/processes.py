"""Which process of how many this is, read from the environment alone: the commands ask before jax is imported.

Three variables say it outright: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Otherwise a launcher
that jax knows may have started us, and has then left its full set of variables. Part of such a set is no launch: a
shell inside a Slurm job has some of them too. That is a single process, and a line says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from sharder.config import Config
from sharder.errors import UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
ATTEMPT_VARIABLE = "SHARDER_ATTEMPT"
SINGLE, JAX, SLURM, OPEN_MPI = "single", "JAX_ variables", "Slurm", "Open MPI"
KUBERNETES, TPU_POD = "Kubernetes", "TPU pod"
SHOWN = 16  # processes named in one line

# What jax's own detection reads (jax/_src/clusters). Open MPI before version 5 also says where process 0 is.
OPEN_MPI_SET = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
SLURM_SET = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")  # the first that is set
TPU_SET = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")
KUBERNETES_SET = ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")


@dataclass(frozen=True)
class Membership:
    index: int
    count: int  # 0: only Kubernetes' own interface knows, and it is asked when joining
    coordinator: str | None  # host:port where process 0 listens; None: there is none, or jax finds it when joining
    source: str
    attempt: str = ""  # which start of the run this is; processes of different attempts never meet

    @property
    def several(self) -> bool:
        return self.count != 1


def membership(environ: Mapping[str, str]) -> tuple[Membership, str | None]:
    """Who we are, and the line to log when some variables of a launcher were there but not taken as a launch."""
    environ = {name: value for name, value in environ.items() if value}
    attempt = environ.get(ATTEMPT_VARIABLE, "")
    if any(name in environ for name in (ADDRESS, COUNT, INDEX)):
        return _told(environ, attempt), None
    why = None
    for launcher in (_open_mpi, _slurm, _tpu_pod, _kubernetes):  # the order in which jax asks
        found = launcher(environ)
        if isinstance(found, tuple):
            source, index, count = found
            if count != 1:
                return Membership(index, count, None, source, attempt), None
            return Membership(0, 1, None, SINGLE, attempt), None
        why = why or found
    return Membership(0, 1, None, SINGLE, attempt), why


def check_part(us: Membership, command: str, config: Config) -> None:
    """What this process is part of, when something else started several, fits what it is to run."""
    if not us.several:
        return
    if command != "train":
        raise UserError(
            f"{command}: found process {us.index} of several ({us.source}), allowed: one process; start it once"
        )
    if config.launch.name != "inline":
        raise UserError(
            f"launch: found {config.launch.name} in process {us.index} of several ({us.source}), allowed: inline, "
            "since the processes are there already; leave launch out"
        )
    if us.count and config.mesh.size % us.count:
        raise UserError(
            f"mesh: found {config.mesh.batch} x {config.mesh.fsdp} = {config.mesh.size} devices for {us.count} "
            f"processes ({us.source}), allowed: a multiple of {us.count}; choose another mesh or number of processes"
        )


def split_address(address: str) -> tuple[str, int]:
    """("node1", 1234) of node1:1234; the brackets around an IPv6 address go."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"{ADDRESS}: {address!r} is no host:port with a port from 1 to 65535, as in node1:1234")
    return host.removeprefix("[").removesuffix("]"), int(port)


def named(indices: Iterable[int]) -> str:
    """process 1; processes 1, 3; processes 1, 3, ... and 40 more."""
    ordered = sorted(indices)
    shown = ", ".join(map(str, ordered[:SHOWN]))
    more = f", ... and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return f"process{'es' if len(ordered) > 1 else ''} {shown}{more}"


def _told(environ: Mapping[str, str], attempt: str) -> Membership:
    missing = _missing(environ, (ADDRESS, COUNT, INDEX))
    if missing:
        there = [name for name in (ADDRESS, COUNT, INDEX) if name in environ]
        raise UserError(
            f"{_set(there)}, but {_not_set(missing)}; set all three to run several processes, or none of them"
        )
    split_address(environ[ADDRESS])
    index, count = _place(environ, INDEX, COUNT)
    return Membership(index, count, environ[ADDRESS], JAX, attempt)


# Each launcher: (source, index, count); or why its variables are not a launch; or None, they are not there at all.
Found = tuple[str, int, int] | str | None


def _open_mpi(environ: Mapping[str, str]) -> Found:
    if not any(name in environ for name in OPEN_MPI_SET):
        return None
    if missing := _missing(environ, OPEN_MPI_SET):
        return _no_launch(OPEN_MPI, environ, OPEN_MPI_SET, missing, "mpirun sets them all")
    return OPEN_MPI, *_place(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _slurm(environ: Mapping[str, str]) -> Found:
    if "SLURM_JOB_ID" not in environ:
        return None
    if missing := _missing(environ, SLURM_SET):
        return _no_launch(SLURM, environ, SLURM_SET, missing, "srun sets them all")
    tasks = environ["SLURM_NTASKS"]
    if tasks != "1" and environ.get("SLURM_STEP_NUM_TASKS") == "1":
        # The shell of an allocation: the tasks are still to be started from it.
        return f"single process: SLURM_NTASKS is {tasks}, but this step has one task; srun starts them all"
    return SLURM, *_place(environ, "SLURM_PROCID", "SLURM_NTASKS")


def _tpu_pod(environ: Mapping[str, str]) -> Found:
    """A TPU virtual machine outside Kubernetes has no such variables: it is told by the three of ours."""
    hosts = next((environ[name] for name in TPU_HOSTS if name in environ), None)
    if hosts is None and "TPU_WORKER_ID" not in environ:
        return None
    known = {**environ, "TPU_WORKER_HOSTNAMES": hosts} if hosts else environ
    if missing := _missing(known, TPU_SET):
        return _no_launch(TPU_POD, known, TPU_SET, missing, "a TPU slice has both")
    per_slice = len(known["TPU_WORKER_HOSTNAMES"].split(","))
    slices = _number(environ, "MEGASCALE_NUM_SLICES") if "MEGASCALE_NUM_SLICES" in environ else 1
    slice_index = _number(environ, "MEGASCALE_SLICE_ID") if "MEGASCALE_SLICE_ID" in environ else 0
    worker = _number(environ, "TPU_WORKER_ID")
    if worker >= per_slice or slice_index >= slices:
        raise UserError(
            f"TPU_WORKER_ID {worker} of {per_slice} hosts, MEGASCALE_SLICE_ID {slice_index} of {slices} slices: "
            "each counts from 0 and must be below its number"
        )
    return TPU_POD, slice_index * per_slice + worker, slices * per_slice


def _kubernetes(environ: Mapping[str, str]) -> Found:
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    if missing := _missing(environ, KUBERNETES_SET):
        return _no_launch(KUBERNETES, environ, KUBERNETES_SET, missing, "a Job with completionMode: Indexed sets it")
    if not _installed("kubernetes"):
        return "single process: this pod is one of an indexed Job, but the package kubernetes is not installed"
    return KUBERNETES, _number(environ, "JOB_COMPLETION_INDEX"), 0


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _place(environ: Mapping[str, str], index_name: str, count_name: str) -> tuple[int, int]:
    index, count = _number(environ, index_name), _number(environ, count_name)
    if count < 1:
        raise UserError(f"{count_name}: {count} processes; it must be 1 or more")
    if index >= count:
        raise UserError(f"{index_name}: {index} is outside 0..{count - 1}, since {count_name} is {count}")
    return index, count


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise UserError(f"{name}: {environ[name]!r} is not a whole number from 0 up")
    return int(environ[name])


def _missing(environ: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in environ]


def _no_launch(source: str, environ: Mapping[str, str], names: tuple[str, ...], missing: list[str], remedy: str) -> str:
    there = [name for name in names if name in environ]
    return f"single process: {_set(there)}, but {_not_set(missing)}, so this is no {source} launch ({remedy})"


def _set(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set"


def _not_set(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not"

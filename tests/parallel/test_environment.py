"""The environment of a worker: ours, unless the user has set it."""

from sharder.config import Config
from sharder.parallel.environment import merge_flags, worker_environment


def on_cpu(count: int) -> Config:
    config = Config()
    config.hardware.kind, config.mesh.fsdp = "cpu", count
    return config


def test_the_platform_is_the_users_if_set() -> None:
    assert "JAX_PLATFORMS" not in worker_environment(Config(), {})
    assert worker_environment(on_cpu(1), {})["JAX_PLATFORMS"] == "cpu"
    assert worker_environment(on_cpu(1), {"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cuda"


def test_simulated_devices_are_asked_for_unless_the_user_did() -> None:
    assert "XLA_FLAGS" not in worker_environment(on_cpu(1), {})
    assert worker_environment(on_cpu(4), {})["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert worker_environment(on_cpu(4), {}, processes=2)["XLA_FLAGS"].endswith("device_count=2")
    assert "XLA_FLAGS" not in worker_environment(on_cpu(4), {}, processes=4)
    users = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_mine"}
    assert worker_environment(on_cpu(4), users)["XLA_FLAGS"] == users["XLA_FLAGS"]


def test_flags_merge_one_by_one() -> None:
    assert merge_flags(["--a=1", "--b=1"], "--b=2 --c") == "--a=1 --b=2 --c"


def test_c_libraries_are_quiet_and_the_rest_is_inherited() -> None:
    environment = worker_environment(Config(), {"HOME": "/h", "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert environment["HOME"] == "/h"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environment["GRPC_VERBOSITY"] == "ERROR"


def test_the_number_of_threads_does_not_depend_on_the_number_of_processes() -> None:
    assert "NPROC" not in worker_environment(on_cpu(1), {})
    whole, shared = worker_environment(on_cpu(64), {}), worker_environment(on_cpu(64), {}, processes=8)
    assert whole["NPROC"] == shared["NPROC"] and int(whole["NPROC"]) >= 64
    assert worker_environment(on_cpu(4), {"NPROC": "3"})["NPROC"] == "3"

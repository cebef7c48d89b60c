"""The environment of a worker: ours, unless the user has set it."""

from sharder.config import Config
from sharder.parallel.environment import merge_flags, worker_environment


def on_cpu(count: int) -> Config:
    config = Config()
    config.hardware.kind, config.hardware.count = "cpu", count
    return config


def test_the_platform_is_the_users_if_set() -> None:
    assert "JAX_PLATFORMS" not in worker_environment(Config(), {})
    assert worker_environment(on_cpu(1), {})["JAX_PLATFORMS"] == "cpu"
    assert worker_environment(on_cpu(1), {"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cuda"


def test_simulated_devices_are_asked_for_unless_the_user_did() -> None:
    assert "XLA_FLAGS" not in worker_environment(on_cpu(1), {})
    assert worker_environment(on_cpu(4), {})["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    users = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_mine"}
    assert worker_environment(on_cpu(4), users)["XLA_FLAGS"] == users["XLA_FLAGS"]


def test_flags_merge_one_by_one() -> None:
    assert merge_flags(["--a=1", "--b=1"], "--b=2 --c") == "--a=1 --b=2 --c"


def test_c_libraries_are_quiet_and_the_rest_is_inherited() -> None:
    environment = worker_environment(Config(), {"HOME": "/h", "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert environment["HOME"] == "/h"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environment["GRPC_VERBOSITY"] == "ERROR"

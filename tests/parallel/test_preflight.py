"""The first collective: where devices cannot talk, the run ends in one line that says what has helped others."""

import threading
from collections.abc import Callable

import pytest
from jax.sharding import Mesh
from made_up_devices import hosts

from sharder.config import MeshConfig
from sharder.errors import UserError
from sharder.parallel.mesh import make_mesh
from sharder.parallel.preflight import preflight

SOON_S, EVENTUALLY_S = 0.05, 60.0  # the second is a limit for a broken test, never waited out


@pytest.fixture
def mesh() -> Mesh:
    """Two hosts with four devices each."""
    return make_mesh(MeshConfig(2, 4), hosts(2, 4))


def refusal(mesh: Mesh, collective: Callable[[Mesh], int]) -> str:
    with pytest.raises(UserError) as raised:
        preflight(mesh, EVENTUALLY_S, collective)
    return str(raised.value)


def test_one_device_has_nobody_to_talk_to() -> None:
    def never(mesh: Mesh) -> int:
        raise AssertionError("called")

    preflight(make_mesh(MeshConfig()), SOON_S, never)


def test_the_right_sum_passes(mesh: Mesh) -> None:
    asked: list[Mesh] = []

    def right(mesh: Mesh) -> int:
        asked.append(mesh)
        return 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7

    preflight(mesh, EVENTUALLY_S, right)
    assert asked == [mesh]


def test_a_collective_that_hangs_ends_the_run_with_what_has_helped_others(mesh: Mesh) -> None:
    let_go = threading.Event()

    def stuck(mesh: Mesh) -> int:
        let_go.wait(EVENTUALLY_S)
        return 28

    try:
        with pytest.raises(UserError) as raised:
            preflight(mesh, SOON_S, stuck)
    finally:
        let_go.set()
    said = str(raised.value)
    assert said.startswith("preflight: a first sum over 8 devices of 2 processes has not returned after 0 s; known")
    assert "NCCL_P2P_DISABLE=1" in said and "NCCL_SOCKET_IFNAME" in said and "launch.preflight_timeout_s" in said
    assert "\n" not in said


def test_one_that_fails_is_told_by_its_first_line(mesh: Mesh) -> None:
    def broken(mesh: Mesh) -> int:
        raise RuntimeError("NCCL operation failed: unhandled cuda error\nstack of many lines")

    said = refusal(mesh, broken)
    assert "8 devices of 2 processes failed (NCCL operation failed: unhandled cuda error); known remedies" in said
    assert "many lines" not in said

    def wordless(mesh: Mesh) -> int:
        raise KeyError

    assert "failed (KeyError)" in refusal(mesh, wordless)


def test_one_that_adds_wrongly_is_not_believed(mesh: Mesh) -> None:
    assert "2 processes gave 27, right is 28; known remedies" in refusal(mesh, lambda mesh: 27)

"""Every collective of a plan, and what is said of them."""

from test_communication import GROUPS, module_of, program

from sharder.measure.hlo import parse
from sharder.predict.traffic import said, traffic


def moved(*lines: str, layout: str = "gather"):
    step = program()
    step.config.layout.name = layout
    return step, parse(module_of(*lines))


WEIGHT = (
    "%w = f32[4,32]{1,0} parameter(0)",
    "%p = f32[16,32]{1,0} parameter(1)",
    f"%s = (f32[4,32]{{1,0}}, f32[16,32]{{1,0}}) all-gather-start(%w), dimensions={{0}}, {GROUPS}",
    "%d = f32[16,16]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "%g = f32[16,32]{1,0} all-gather-done(%s)",
)
ACTIVATION = (
    "%x = f32[2,97,16]{2,1,0} parameter(2)",
    f"%a = f32[8,97,16]{{2,1,0}} all-gather(%x), dimensions={{0}}, {GROUPS}",
)


def test_a_collective_has_its_tensor_its_bytes_and_what_runs_beside_it() -> None:
    from types import SimpleNamespace

    step, module = moved(*WEIGHT)
    devices = SimpleNamespace(flat=[SimpleNamespace(process_index=i // 2) for i in range(4)])
    mesh = SimpleNamespace(devices=devices, shape=step.mesh.shape, size=4)
    object.__setattr__(step, "mesh", mesh)
    found, totals = traffic(step, module)
    (one,) = found.moved
    assert (one.kind, one.tensor, one.dtype, one.dims) == ("all-gather", "layer weights", "f32", (16, 32))
    assert (one.times, one.payload_bytes, one.sent_bytes) == (1, 2048, 2048 * 3 / 4)
    assert (one.is_async, one.instructions_between, one.matmuls_between) == (True, 1, 1)
    assert one.between_hosts  # two hosts of two
    assert [(total.kind, total.hidden_share) for total in totals] == [("all-gather", 1.0)]


def sentence(layout: str, *tensors: tuple[str, int], ideal: int = 10**9) -> str:
    from types import SimpleNamespace

    moved = [SimpleNamespace(tensor=tensor, payload_bytes=count) for tensor, count in tensors]
    return said(layout, moved, ideal)  # type: ignore[arg-type]


def test_the_sum_stands_beside_the_ideal() -> None:
    assert sentence("gather", ("layer weights", 10**9), ("other", 5)) == (
        "1.000 GB of payload a step, 1 times the 1.000 GB that the shapes ask for"
    )


def test_activations_that_travel_are_told_of() -> None:
    text = sentence("auto", ("layer weights", 10**9), ("activations", 3 * 10**9))
    assert text.startswith("4.000 GB of payload a step, 4 times the 1.000 GB that layout=gather would move")
    assert "75% of it are activations that travel where weights should: layout=gather moves weights" in text
    assert "activations" in sentence("gather", ("layer weights", 10**9), ("activations", 10**8))
    assert "activations" not in sentence("auto", ("layer weights", 10**9), ("activations", 10**6))


def test_one_device_moves_nothing() -> None:
    assert sentence("gather", ideal=0) == "nothing travels"

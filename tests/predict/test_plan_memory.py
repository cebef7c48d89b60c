"""The kinds of memory: placements and a compiler's buffers, added up; a save; the allocator's share."""

import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from test_communication import program

from sharder.config import HardwareConfig, MeshConfig
from sharder.errors import UserError
from sharder.measure.hlo import Module, Shape, parse
from sharder.parallel.layout import device_bytes
from sharder.parallel.mesh import make_mesh
from sharder.predict import memory
from sharder.predict.buffers import Buffer
from sharder.predict.memory import FRACTION, OLD_FRACTION, Memory, Part, allocator_share, placed_parts, temporary_parts
from sharder.training.state import init_state, run_once

LAYER_WEIGHT = "f32[16,32]"  # of the micro model: one layer's mlp/gate, whole
STACK = "f32[2,16,32]"  # both layers'


def module_of(*lines: str) -> Module:
    body = "\n".join(f"  {line}" for line in lines)
    return parse(f"HloModule m, num_partitions=4\n\nENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n")


def scope(name: str) -> str:
    return f'metadata={{op_name="jit(train_step)/{name}"}}'


MODULE = module_of(
    f"%gathered = {LAYER_WEIGHT}{{1,0}} all-gather(%p), dimensions={{0}}, {scope('layers/gather_weights/all_gather')}",
    f"%cast = {LAYER_WEIGHT}{{1,0}} convert(%p), {scope('jvp(layers)/convert_element_type')}",
    f"%backward = {LAYER_WEIGHT}{{1,0}} add(%p, %p), {scope('transpose(jvp(layers))/add_any')}",
    f"%product = {LAYER_WEIGHT}{{1,0}} dot(%p, %p), {scope('layers/dot_general')}",
    f"%scattered = {STACK}{{2,1,0}} reduce-scatter(%p), {scope('reduce_gradients/psum_scatter')}",
    f"%update = {STACK}{{2,1,0}} multiply(%p, %p), {scope('optimizer/mul')}",
    f"%carried = (s32[], {STACK}{{2,1,0}}, {LAYER_WEIGHT}{{1,0}}) while(%p), body=%b, condition=%c",
    f"%activation = f32[4,53,16]{{2,1,0}} add(%p, %p), {scope('transpose(jvp(layers))/add_any')}",
    '%gemm = (f32[4,16]{1,0}, s8[4194304]{0}) custom-call(%p), custom_call_target="__cublas$gemm"',
)


def buffer(instruction: str, shape: Shape, index: str = "", offset: int = 0, alive: tuple[int, int] = (0, 1)) -> Buffer:
    return Buffer(instruction, index, (shape,), offset, shape.bytes, *alive)


WHOLE, BOTH, ACTIVATION = Shape("f32", (16, 32)), Shape("f32", (2, 16, 32)), Shape("f32", (4, 53, 16))


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (buffer("gathered", WHOLE), memory.IN_USE),
        (buffer("cast", WHOLE), memory.IN_USE),
        (buffer("backward", WHOLE), memory.GRADIENTS),
        (buffer("product", WHOLE), memory.GRADIENTS),
        (buffer("scattered", BOTH), memory.GRADIENTS),
        (buffer("update", BOTH), memory.GRADIENTS),
        (buffer("carried", BOTH, "1"), memory.GRADIENTS),
        (buffer("carried", WHOLE, "2"), memory.IN_USE),
        (buffer("activation", ACTIVATION), memory.ACTIVATIONS),
        (buffer("gemm", Shape("s8", (4194304,)), "1"), memory.WORKSPACE),
        (buffer("gemm", Shape("f32", (4, 16)), "0"), memory.ACTIVATIONS),
    ],
    ids=lambda value: value.instruction if isinstance(value, Buffer) else str(value),
)
def test_a_temporary_is_of_the_kind_that_its_dims_and_its_scope_say(found: Buffer, kind: str) -> None:
    parts = temporary_parts(program(), MODULE, [found], 10**9)
    assert {name: count for name, count in parts.items() if count} == {kind: found.bytes}


def test_what_shares_bytes_counts_once_and_what_is_over_not_at_all() -> None:
    temporaries = [
        buffer("activation", ACTIVATION, offset=0, alive=(0, 1)),  # over when most is alive
        buffer("backward", WHOLE, offset=0, alive=(2, 5)),
        buffer("carried", WHOLE, "2", offset=0, alive=(3, 5)),  # the same bytes, passed on by the loop
        buffer("activation", ACTIVATION, offset=2048, alive=(3, 5)),
    ]
    parts = temporary_parts(program(), MODULE, temporaries, 10**9)
    assert {name: count for name, count in parts.items() if count} == {
        memory.GRADIENTS: WHOLE.bytes,
        memory.ACTIVATIONS: ACTIVATION.bytes,
    }


def test_a_compiler_that_does_not_tell_temporaries_apart_gives_one_row() -> None:
    assert temporary_parts(program(), MODULE, None, 7) == {memory.UNDIVIDED: 7}


def test_what_is_placed_is_the_state_and_the_batch_to_the_byte() -> None:
    step = program()
    parts = placed_parts(step)
    assert sum(parts.values()) == device_bytes((step.state, step.batch))
    assert parts[memory.WEIGHTS] == parts[memory.AVERAGE] == device_bytes(step.state.trainable)
    assert 0 <= parts[memory.MOMENTS] - 2 * parts[memory.WEIGHTS] < 20  # and three counters


def test_what_is_placed_on_one_device_is_what_a_live_run_holds() -> None:
    step = program(1, 1)
    state = run_once(lambda: init_state(step.config))
    live = sum(array.nbytes for array in jax.tree.leaves(state))
    parts = placed_parts(step)
    assert sum(parts.values()) - parts[memory.BATCH] == live


def of_bytes(total: int, share: float = 0.75, source: str = "", words: str | None = None) -> Memory:
    return Memory((Part("weights", total, "placement"),), total, 1000, share, source, (), words)


def test_it_fits_up_to_the_share_of_the_memory_and_not_beyond() -> None:
    assert of_bytes(750).fits and not of_bytes(751).fits
    assert not of_bytes(1, words="Ran out of memory").fits


def test_a_larger_share_is_offered_where_it_would_help_and_is_sensible() -> None:
    assert of_bytes(801).fits_with_fraction == 0.81
    assert of_bytes(951).fits_with_fraction is None  # CUDA needs the rest
    assert of_bytes(700).fits_with_fraction is None  # it fits as it is
    assert of_bytes(801, source=memory.UNSHARED).fits_with_fraction is None


def test_the_share_is_the_users_if_set() -> None:
    gpu, tpu = HardwareConfig("h100", memory_share=0.75), HardwareConfig("tpu_v5e", memory_share=1.0)
    assert allocator_share(gpu, {})[0] == 0.75
    share, source = allocator_share(gpu, {FRACTION: "0.9"})
    assert share == 0.9 and FRACTION in source
    assert allocator_share(tpu, {FRACTION: "0.9"})[0] == 1.0
    with pytest.raises(UserError, match=f"{FRACTION}: found 'most', allowed: above 0, at most 1"):
        allocator_share(gpu, {FRACTION: "most"})


def test_the_share_has_two_names_of_which_jax_takes_one() -> None:
    gpu = HardwareConfig("h100", memory_share=0.75)
    share, source = allocator_share(gpu, {OLD_FRACTION: "0.9", FRACTION: ""})
    assert share == 0.9 and source.startswith(OLD_FRACTION)
    with pytest.raises(UserError, match=f"{OLD_FRACTION}: found beside {FRACTION}"):
        allocator_share(gpu, {OLD_FRACTION: "0.9", FRACTION: "0.8"})


@pytest.mark.parametrize(("hbm_bytes", "share"), [(1, 0.75), (10**9, 1e-12)])
def test_a_device_of_which_a_program_can_have_nothing_is_refused(
    hbm_bytes: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (FRACTION, OLD_FRACTION):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=f"hardware.hbm_bytes: found {hbm_bytes}, of which a program can have {share}"):
        memory.limit_bytes(HardwareConfig("h100", hbm_bytes=hbm_bytes, memory_share=share))


def test_a_host_copies_the_pieces_whose_first_holder_it_has() -> None:
    """Two hosts of two devices: those of the second hold what those of the first do, or other pieces."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "parallel"))
    from made_up_devices import hosts

    mesh = make_mesh(MeshConfig(2, 2), hosts(2, 2))
    for spec, pieces in (((), {0: 1}), (("fsdp",), {0: 2}), ((("batch", "fsdp"),), {0: 2, 1: 2})):
        assert memory._pieces_by_host(NamedSharding(mesh, PartitionSpec(*spec)), (8, 2)) == pieces


def test_as_many_checkpoints_lie_on_disk_as_training_makes_room_for() -> None:
    config = program().config
    config.train.steps, config.checkpoint.every_steps, config.checkpoint.keep = 1000, 100, 2
    assert memory.kept_at_once(config) == 3
    config.checkpoint.keep_every = 500
    assert memory.kept_at_once(config) == 5
    config.checkpoint.every_steps = 1000
    assert memory.kept_at_once(config) == 2

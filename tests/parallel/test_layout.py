"""Who holds which slice: on weights made up here, and the whole table of the real models.

The tables are in golden/<model>-<layout>-fsdp<n>.txt. After a change that is meant to move weights, rewrite them with
`python tests/parallel/test_layout.py` and read what git shows.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, PartitionSpec

from sharder.compose import composed
from sharder.config import Config, LayoutConfig
from sharder.errors import UserError
from sharder.parallel.layout import Slicing, device_bytes, held_whole, make_layout, placements, table_text
from sharder.parallel.mesh import BATCH, FSDP
from sharder.training.program import placed_state
from sharder.training.state import TrainState, state_bytes

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("gather", "auto", "published")
CASES = [(model, "gather", mesh) for model in ("pi0", "pi05", "pi0_lora") for mesh in ("fsdp4", "hsdp2x4")]
CASES.append(("pi0", "auto", "fsdp4"))

Weights = dict[str, jax.ShapeDtypeStruct]


def weight(*shape: int, dtype: type = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def devices(batch: int, fsdp: int) -> AbstractMesh:
    return AbstractMesh((batch, fsdp), (BATCH, FSDP))


def sliced(weights: Weights, name: str = "gather", fsdp: int = 4, min_shard_bytes: int = 1024) -> dict[str, Slicing]:
    return dict(make_layout(weights, LayoutConfig(name, "auto", min_shard_bytes), devices(1, fsdp)))


def dims(weights: Weights, name: str = "gather", fsdp: int = 4) -> dict[str, int | None]:
    return {path: slicing.dim for path, slicing in sliced(weights, name, fsdp).items()}


def test_gather_splits_the_first_dim_that_divides_and_the_others_the_largest() -> None:
    weights = {
        "first/kernel": weight(32, 64),
        "second/kernel": weight(30, 64),
        "square/kernel": weight(64, 64),
        "patch_kernel": weight(14, 14, 3, 64),
    }
    assert dims(weights) == {"first/kernel": 0, "second/kernel": 1, "square/kernel": 0, "patch_kernel": 3}
    for name in ("auto", "published"):
        assert dims(weights, name) == {"first/kernel": 1, "second/kernel": 1, "square/kernel": 0, "patch_kernel": 3}


def test_the_dim_of_a_stack_is_never_split() -> None:
    weights = {"gemma/layers/mlp/up": weight(8, 30, 64), "gemma/up": weight(8, 30, 64), "layers": weight(8, 64, 64)}
    for name in NAMES:
        layout = sliced(weights, name)
        assert layout["gemma/layers/mlp/up"] == Slicing(2, together=False, stacked=True)
        assert layout["gemma/layers/mlp/up"].layer_dim == 1
        assert layout["gemma/layers/mlp/up"].spec == PartitionSpec(None, None, FSDP)
        assert layout["layers"] == Slicing(1, together=False, stacked=True)
    assert sliced(weights)["gemma/up"] == Slicing(0, together=False, stacked=False)
    assert sliced(weights)["gemma/up"].spec == PartitionSpec(FSDP)


def test_gather_splits_the_token_table_by_columns_or_not_at_all() -> None:
    """A device looks up everyone's tokens in its own columns: rows of a split table would have to be sent for."""
    other = {"kernel": weight(64, 64)}
    assert dims(other | {"gemma/table": weight(1000, 64)})["gemma/table"] == 1
    assert dims(other | {"gemma/table": weight(1000, 62)})["gemma/table"] is None
    for name in ("auto", "published"):
        assert dims(other | {"gemma/table": weight(1000, 64)}, name)["gemma/table"] == 0


def test_vectors_and_small_weights_are_packed_whatever_their_dims() -> None:
    """Small is what one layer holds, in bytes; a stack of vectors is one, however many there are."""
    weights = {
        "kernel": weight(64, 64),
        "bias": weight(4096),
        "scalar": weight(),
        "layers/bias": weight(100, 4096),
        "small/kernel": weight(16, 12),
        "layers/small/kernel": weight(100, 16, 12),
        "narrow/kernel": weight(16, 16, dtype=jax.numpy.bfloat16),
        "exact/kernel": weight(16, 16),
    }
    layout = sliced(weights, min_shard_bytes=1024)
    packed = {path for path, slicing in layout.items() if slicing.together}
    assert packed == set(weights) - {"kernel", "exact/kernel"}
    assert all(layout[path].dim is None and layout[path].spec == PartitionSpec() for path in packed)


def test_large_weights_that_nothing_divides_are_whole_and_named_with_their_size() -> None:
    weights = {
        "kernel": weight(64, 64),
        "odd/kernel": weight(513, 1023),
        "odder/kernel": weight(1025, 1023),
        "below/kernel": weight(511, 513),
        "layers/odd/kernel": weight(4, 515, 513),
        "vector": weight(300_000),
    }
    layout = sliced(weights)
    assert layout["odd/kernel"] == Slicing(None, together=False, stacked=False)
    assert layout["layers/odd/kernel"].layer_dim is None
    assert held_whole(weights, layout) == [
        "layers/odd/kernel (4.2 MB)",
        "odder/kernel (4.2 MB)",
        "odd/kernel (2.1 MB)",
        "vector (1.2 MB)",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_an_fsdp_axis_that_divides_nothing_is_refused_in_one_line(name: str) -> None:
    for weights in ({"kernel": weight(33, 65), "bias": weight(64)}, {"small/kernel": weight(4, 4)}):
        with pytest.raises(UserError) as refusal:
            sliced(weights, name)
        assert str(refusal.value) == (
            "mesh.fsdp: found 4, which divides no dim of any weight of layout.min_shard_bytes=1024 bytes or more; "
            "allowed: a divisor of the model's widths; choose another mesh"
        )


def test_one_fsdp_device_holds_all() -> None:
    weights = {"kernel": weight(64, 64), "bias": weight(64), "layers/kernel": weight(2, 33, 65)}
    for name in NAMES:
        layout = sliced(weights, name, fsdp=1)
        assert layout == {
            "kernel": Slicing(None, together=False, stacked=False),
            "bias": Slicing(None, together=True, stacked=False),
            "layers/kernel": Slicing(None, together=False, stacked=True),
        }


def test_the_table_has_a_line_a_weight_in_the_order_of_the_paths() -> None:
    weights = {"b": weight(33, 65), "layers/a": weight(2, 64, 64, dtype=jax.numpy.bfloat16), "c": weight(7)}
    assert table_text(weights, sliced(weights)) == (
        "b float32[33, 65] whole\nc float32[7] packed\nlayers/a bfloat16[2, 64, 64] dim 1\n"
    )


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 48), min_size=1, max_size=4), max_size=5),
    fsdp=st.integers(2, 16),
    name=st.sampled_from(NAMES),
    stacked=st.booleans(),
)
def test_whatever_the_shapes_the_split_dim_divides_and_is_no_stack(
    shapes: list[list[int]], fsdp: int, name: str, stacked: bool
) -> None:
    """And a weight that could be split is: none is held whole but small ones and those that no dim divides."""
    where = "gemma/layers" if stacked else "gemma"
    weights = {f"{where}/{number}": weight(*shape) for number, shape in enumerate(shapes)}
    layout = sliced(weights | {"always": weight(fsdp, 1024)}, name, fsdp)
    first = 1 if stacked else 0
    for path, one in weights.items():
        own = one.shape[first:]
        large = len(own) > 1 and int(np.prod(own)) * 4 >= 1024
        can = {dim for dim, size in enumerate(one.shape) if dim >= first and size % fsdp == 0}
        found = layout[path].dim
        assert found in can if large and can else found is None
        assert layout[path].together == (not large)
        if found is not None and name != "gather":
            assert one.shape[found] == max(one.shape[dim] for dim in can)


def run_config(model: str, layout: str, mesh: str) -> Config:
    return composed("train", [f"model={model}", f"layout={layout}", f"mesh={mesh}"])[0]


def state_of(config: Config) -> tuple[TrainState, dict[str, Slicing]]:
    """Placed; shapes alone, no memory."""
    state, layout = placed_state(config, devices(config.mesh.batch, config.mesh.fsdp))
    return state, dict(layout)


def golden_of(model: str, layout: str, mesh: str) -> tuple[Path, str]:
    config = run_config(model, layout, mesh)
    state, table = state_of(config)
    return GOLDEN / f"{model}-{layout}-fsdp{config.mesh.fsdp}.txt", table_text(state.weights, table)


@pytest.mark.parametrize(("model", "layout", "mesh"), CASES)
def test_golden_tables(model: str, layout: str, mesh: str) -> None:
    """Only the fsdp axis matters: hsdp2x4 has the table of fsdp4."""
    file, found = golden_of(model, layout, mesh)
    assert found == file.read_text()


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("fsdp", [1, 2, 4, 8])
def test_a_device_holds_an_nth_of_pi0s_state(layout: str, fsdp: int) -> None:
    """Weights, both moments and the average; 13 GB and more a copy. Nothing worth naming is held whole (F7.1)."""
    config = run_config("pi0", layout, "single" if fsdp == 1 else f"fsdp{fsdp}")
    state, table = state_of(config)
    assert state.ema is not None
    assert state_bytes(state) > 50e9
    assert device_bytes(state) == pytest.approx(state_bytes(state) / fsdp, rel=0.05)
    if fsdp > 1:
        assert held_whole(state.weights, table) == []


def test_moments_and_averages_lie_like_their_weights_and_a_batch_axis_saves_nothing() -> None:
    state, layout = state_of(run_config("pi0_lora", "gather", "hsdp2x4"))
    path = "gemma/layers/action/mlp/lora/up/b"
    adam = state.optimizer[0]
    for part in (state.trainable, adam.mu, adam.nu, state.ema):
        assert part is not None
        assert part[path].sharding.spec == PartitionSpec(None, FSDP)
    frozen = "gemma/layers/language/mlp/up"
    assert state.frozen[frozen].sharding.spec == PartitionSpec(None, FSDP)
    assert frozen not in adam.mu
    for count in (state.step, adam.count):
        assert count.sharding.spec == PartitionSpec()
    alone = placements(state, layout, devices(1, 4))
    assert all(
        leaf.sharding.spec == other.spec for leaf, other in zip(*map(jax.tree.leaves, (state, alone)), strict=True)
    )


if __name__ == "__main__":
    for case in CASES:
        file, text = golden_of(*case)
        file.write_text(text)

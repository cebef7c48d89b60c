"""Training starts from our checkpoints, openpi's parameters or PaliGemma's npz; what does not fit is named."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from micro import initial_state, micro_config

from sharder.data.dataset import open_dataset
from sharder.errors import UserError
from sharder.model.openpi_names import to_openpi
from sharder.model.pi0 import init_weights
from sharder.training.checkpoint import Checkpoints, nest
from sharder.training.meaning import about
from sharder.training.pretrained import read_weights, warn_of_other_statistics
from sharder.training.state import run_once


@pytest.fixture
def config(tmp_path):
    config = micro_config(tmp_path)
    config.model.name = "micro"
    return config


@pytest.fixture
def source(config):
    """Weights that the config's seed does not draw."""
    return run_once(lambda: init_weights(config.model, jax.random.key(123)))


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def save_openpi(folder, tree):
    with ocp.PyTreeCheckpointer() as writer:
        writer.save(folder.absolute(), tree)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped in value"])
@pytest.mark.parametrize("given", ["step folder", "params folder"])
def test_openpi_parameters(tmp_path, config, source, wrapped, given):
    theirs = to_openpi(config.model, source)
    leaves = {f"{path}/value" if wrapped else path: np.asarray(value) for path, value in theirs.items()}
    save_openpi(tmp_path / "1000" / "params", {"params": nest(leaves)})
    path = tmp_path / "1000" if given == "step folder" else tmp_path / "1000" / "params"
    weights, said = read_weights(path, config)
    same(weights, source)
    assert "openpi's weights" in said and "at random" not in said


def test_paligemma_npz_leaves_the_action_expert_random(tmp_path, config, source):
    theirs = to_openpi(config.model, source)
    kept = {path: value for path, value in theirs.items() if path.startswith("PaliGemma/") and "_1" not in path}
    kept |= {path: value for path, value in theirs.items() if path.startswith("PaliGemma/img/")}
    archive = {path.replace("PaliGemma/", "params/"): np.asarray(value) for path, value in kept.items()}
    np.savez(tmp_path / "pali.npz", **archive)
    weights, said = read_weights(tmp_path / "pali.npz", config)
    drawn = initial_state(config).weights
    for path, value in weights.items():
        ours = "action" in path or path.startswith("state_in")
        np.testing.assert_allclose(value, drawn[path] if ours else source[path], rtol=1e-6, err_msg=path)
    assert "gemma/layers/action" in said and "action_in/kernel" in said and "gemma/layers/language" not in said


def test_our_own_checkpoint_gives_its_averaged_weights(tmp_path, config):
    state = initial_state(config)
    state.ema.update({path: value + 1 for path, value in state.ema.items()})
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", config.checkpoint)
    checkpoints.save(state, 7, {"step": 7})
    checkpoints.close()
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints", tmp_path / "run" / "checkpoints" / "7"):
        weights, _ = read_weights(path, config)
        same(weights, state.ema)


def test_a_base_model_gets_random_lora_corrections(tmp_path, config, source):
    save_openpi(tmp_path / "params", {"params": nest(to_openpi(config.model, source))})
    config.model.language.lora_rank = config.model.action.lora_rank = 2
    weights, said = read_weights(tmp_path, config)
    np.testing.assert_array_equal(weights["gemma/table"], source["gemma/table"])
    assert not weights["gemma/layers/language/attention/lora/q/b"].any()  # so that training starts from the base model
    assert "at random" in said


def test_weights_come_in_the_configs_dtype(tmp_path, config, source):
    save_openpi(tmp_path / "params", {"params": nest(to_openpi(config.model, source))})
    config.model.weight_dtype = "bfloat16"
    weights, _ = read_weights(tmp_path, config)
    assert {value.dtype for value in weights.values()} == {jnp.dtype("bfloat16")}


def test_what_does_not_fit_is_refused_by_name(tmp_path, config, source):
    save_openpi(tmp_path / "params", {"params": nest(to_openpi(config.model, source))})
    config.model.horizon = 9  # sizes no weight
    read_weights(tmp_path, config)
    config.model.vocabulary = 300
    with pytest.raises(UserError, match=r"gemma/table of shape \[264, 16\], model=micro needs \[300, 16\]"):
        read_weights(tmp_path, config)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"model\.weights: .*empty is neither"):
        read_weights(tmp_path / "empty", config)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"bad\.npz cannot be read"):
        read_weights(tmp_path / "bad.npz", config)


def test_other_statistics_than_in_the_weights_training_are_told(tmp_path, caplog):
    data = open_dataset(micro_config(tmp_path))
    folder = tmp_path / "base" / "run"
    checkpoints = Checkpoints(folder / "checkpoints", data.config.checkpoint)
    checkpoints.save(initial_state(data.config), 3, about(data, 3))
    checkpoints.close()
    with caplog.at_level(logging.WARNING, "sharder"):
        warn_of_other_statistics(folder, data)
        assert not caplog.records
        data.normalization.actions.std[1] *= 1.2
        warn_of_other_statistics(folder, data)
    (record,) = caplog.records
    assert "actions" in record.message and "elbow" in record.message and "shoulder" not in record.message

"""What is written for openpi is read back as the same weights and normalization."""

import numpy as np
from micro import initial_state, micro_config

from sharder.data.dataset import open_dataset
from sharder.data.norm_stats import read
from sharder.training.checkpoint import Checkpoints
from sharder.training.export import to_openpi_layout
from sharder.training.meaning import about
from sharder.training.pretrained import read_weights


def test_export_and_start_from_it(tmp_path):
    data = open_dataset(micro_config(tmp_path))
    config, state = data.config, initial_state(data.config)
    state.ema.update({path: value * 2 for path, value in state.ema.items()})  # the average is what acts
    checkpoints = Checkpoints(tmp_path / "mine" / "run" / "checkpoints", config.checkpoint)
    checkpoints.save(state, 3, about(data, 3))
    checkpoints.close()

    config.resume = str(tmp_path / "mine" / "run")
    to_openpi_layout(config, tmp_path / "out")
    weights, said = read_weights(tmp_path / "out", config)
    assert "openpi's weights" in said and "at random" not in said
    for path, value in state.ema.items():
        np.testing.assert_array_equal(weights[path], value, err_msg=path)
    stats = read(tmp_path / "out" / "assets" / "mine" / "norm_stats.json", 2, 2, "quantiles")
    np.testing.assert_array_equal(stats.actions.q99, data.normalization.actions.q99)

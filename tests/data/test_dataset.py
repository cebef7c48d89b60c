"""From a config to batches: open sizes come from the data, absent cameras are told, both versions give the same."""

import logging
from pathlib import Path

import numpy as np
import pytest

from sharder.config import Config
from sharder.data.dataset import open_dataset
from sharder.errors import UserError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def planar_arm(**model) -> Config:
    config = Config()
    config.train.batch_size = 8
    config.data.planar_arm.episodes, config.data.planar_arm.image_size = 4, 16
    config.data.decoders = 8
    for name, value in ({"image_size": 16, "action_dim": 0, "prompt_tokens": 0, "horizon": 4} | model).items():
        setattr(config.model, name, value)
    return config


def test_sizes_left_open_come_from_the_data():
    config = planar_arm()
    data = open_dataset(config)
    assert (data.config.model.action_dim, data.config.model.prompt_tokens) == (2, 24)  # 23 bytes, in steps of 8
    assert (config.model.action_dim, config.model.prompt_tokens) == (0, 0)  # what was given stays as it was
    batch = data.source().batch(0)
    assert batch["state"].shape == (8, 2) and batch["actions"].shape == (8, 4, 2) and batch["tokens"].shape == (8, 24)


def test_sizes_that_are_given_stay():
    data = open_dataset(planar_arm(action_dim=32, prompt_tokens=40))
    batch = data.source().batch(0)
    assert batch["actions"].shape == (8, 4, 32) and batch["tokens"].shape == (8, 40)
    assert not batch["state"][:, 2:].any()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"action_dim": 1}, r"2 joints > model\.action_dim=1"),
        ({"prompt_tokens": 10}, r"need up to 23 tokens but model\.prompt_tokens=10: \d+ of \d+ examples"),
    ],
)
def test_sizes_that_are_too_small_are_refused(model, words):
    with pytest.raises(UserError, match=words):
        open_dataset(planar_arm(**model))


def test_a_batch_larger_than_the_set_is_refused():
    config = planar_arm()
    config.train.batch_size = 100_000
    with pytest.raises(UserError, match=r"train\.batch_size"):
        open_dataset(config)


def test_the_log_names_the_cameras_there_are_and_those_there_are_not(caplog):
    with caplog.at_level(logging.INFO):
        open_dataset(planar_arm())
    assert "base_0_rgb <- observation.images.base" in caplog.text
    assert "absent: right_wrist_0_rgb (not run" in caplog.text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real recordings are not beside this checkout (../shared/data)")
@pytest.mark.parametrize("variant", ["pi0", "pi05"])
def test_a_real_recording_gives_the_same_batches_in_both_versions(variant):
    sources = []
    for version in ("v21", "v30"):
        config = planar_arm(variant=variant)
        config.data.kind, config.data.root = "lerobot", str(SHARED / f"g1_bottle_{version}")
        sources.append(open_dataset(config).source())
    for step in (0, 61, 62):  # 498 frames are 62 batches of 8: the last of epoch 0, the first of epoch 1
        one, other = (source.batch(step) for source in sources)
        assert list(one["images"]) == ["base_0_rgb"] and one["actions"].shape == (8, 4, 26)
        for name in ("tokens", "token_mask", "state", "actions", "example"):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        np.testing.assert_array_equal(one["images"]["base_0_rgb"], other["images"]["base_0_rgb"])

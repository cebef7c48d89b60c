"""data=fixed: one made-up batch that comes again every step."""

import numpy as np
import pytest

from sharder.compose import composed
from sharder.data.dataset import Dataset, open_dataset
from sharder.data.fixed import DIMS, PROMPT


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fixed(*typed: str) -> Dataset:
    (config,) = composed("train", ["model=pi0_micro", "data=fixed", "train.batch_size=6", *typed])
    return open_dataset(config)


def test_every_step_has_the_same_examples_in_another_order() -> None:
    source = fixed().source()
    first, second = source.batch(0), source.batch(1)
    assert not np.array_equal(first["example"], second["example"])
    for name in ("state", "actions", "tokens"):
        a, b = first[name][np.argsort(first["example"])], second[name][np.argsort(second["example"])]
        assert np.array_equal(a, b)
    for camera, images in first["images"].items():
        again = second["images"][camera]
        assert np.array_equal(images[np.argsort(first["example"])], again[np.argsort(second["example"])])


def test_it_has_the_models_sizes_and_every_camera_unless_some_are_named() -> None:
    data = fixed()
    side = data.config.model.image_size
    batch = data.source().batch(0)
    assert {images.shape for images in batch["images"].values()} == {(6, side, side, 3)}
    assert sorted(batch["images"]) == ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
    assert batch["state"].shape == (6, DIMS) == (6, data.config.model.action_dim)
    assert (batch["token_mask"].sum(1) >= len(PROMPT)).all() and (batch["tokens"] == batch["tokens"][0]).all()
    assert list(fixed("data.cameras.base_0_rgb=here").source().batch(0)["images"]) == ["base_0_rgb"]


def test_another_seed_makes_other_examples() -> None:
    one, other = (fixed(f"train.seed={seed}").source().batch(0) for seed in (0, 1))
    assert not np.array_equal(np.sort(one["state"], axis=0), np.sort(other["state"], axis=0))

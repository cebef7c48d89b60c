"""What evaluation reports is what happened: a policy that knows the answer gets full marks, one that does not, none."""

import numpy as np
import pytest
from micro import initial_state, micro_config

from sharder.data.closed_loop import expert_policy
from sharder.data.dataset import open_dataset
from sharder.model.execution import Execution
from sharder.training.evaluation import Success, against_recording, baselines, closed_loop
from sharder.training.policy import Sampler


@pytest.fixture
def data(tmp_path):
    config = micro_config(tmp_path)
    config.evaluation.episodes, config.evaluation.max_steps = 5, 40
    return open_dataset(config)


class Knows:
    """Answers what was recorded, off by `error`."""

    def __init__(self, data, error):
        self.data, self.error = data, error

    def sample(self, weights, batch, draw):
        return self.data.transform.robot_actions(batch["actions"]) + self.error


def test_action_error_against_a_recording(data):
    result = against_recording(Knows(data, 0.25), {}, data, frames=40)
    assert result["frames"] == 40
    assert result["action_error"] == pytest.approx(0.25, abs=1e-5)
    assert list(result["action_error_by_joint"]) == data.recording.action_names
    assert against_recording(Knows(data, 0.0), {}, data, frames=10_000)["action_error"] < 1e-6
    spread = np.abs(np.asarray(data.recording.actions) - data.normalization.actions.mean).mean()
    assert result["action_error_of_mean_action"] == pytest.approx(spread, rel=0.5)


def test_closed_loop_counts_successes_and_writes_a_video(data, tmp_path):
    class Expert:
        def policy(self, weights):
            return expert_policy(data.config.evaluation.seed + np.arange(5))

    success = closed_loop(Expert(), {}, data.config, tmp_path / "film.mp4")
    assert (success.successes, success.episodes) == (5, 5)
    assert (tmp_path / "film.mp4").stat().st_size > 1000
    assert baselines(data.config)["zero actions"].successes == 0


def test_the_model_acts_the_same_whatever_other_environments_do(data):
    """Noise belongs to (seed, call, environment): one environment's actions do not depend on how many there are."""
    sampler = Sampler(data.config, data.transform, tuple(data.recording.cameras), Execution())
    weights = initial_state(data.config).weights
    from sharder.data.planar_arm import PlanarArm

    observation = PlanarArm(np.arange(3), 16).observe()
    fewer = {
        "images": {camera: images[:2] for camera, images in observation["images"].items()},
        "state": observation["state"][:2],
        "prompt": observation["prompt"][:2],
    }
    three, two = sampler.act(weights, observation, 4), sampler.act(weights, fewer, 4)
    assert three.shape == (3, data.config.model.horizon, 2)
    np.testing.assert_allclose(three[:2], two, atol=1e-5)
    assert not np.allclose(three, sampler.act(weights, observation, 5))


def test_an_interval_is_said_with_the_rate():
    assert str(Success(9, 10)) == "90% (9 of 10, 95% interval 60% to 98%)"
    assert Success(9, 10).row()["success_rate"] == 0.9

import av
import numpy as np
import pytest

from sharder.data.closed_loop import expert_policy, random_policy, roll_out, wilson_interval, write_video, zero_policy
from sharder.data.planar_arm import HOLD_STEPS, PlanarArm

SEEDS = np.arange(1_000_000, 1_000_200)
SETTING = {"seeds": SEEDS, "image_size": 16, "max_steps": 60, "execute": 4}


def test_the_expert_always_succeeds():
    rollouts = roll_out(expert_policy(SEEDS), **SETTING)
    assert rollouts.success.all() and rollouts.success_rate == 1
    assert rollouts.steps.min() >= HOLD_STEPS and rollouts.steps.max() < 30
    assert rollouts.final_distance.max() < 0.05


def test_standing_still_never_succeeds():
    rollouts = roll_out(zero_policy, **SETTING)
    assert rollouts.success_rate == 0
    assert (rollouts.steps == 60).all()
    np.testing.assert_allclose(rollouts.final_distance, PlanarArm(SEEDS).distance)


@pytest.mark.parametrize("hold", [1, 4, 8])
def test_chance_seldom_succeeds(hold):
    rollouts = roll_out(random_policy(0, hold), **(SETTING | {"execute": hold}))
    assert 0 <= rollouts.success_rate < 0.08
    again = roll_out(random_policy(0, hold), **(SETTING | {"execute": hold}))
    assert np.array_equal(rollouts.final_distance, again.final_distance)


def test_chunks_are_executed_in_order_and_in_part():
    asked = []

    def policy(observation, control_step):
        asked.append((control_step, observation["state"][0, 0]))
        steps = control_step + np.arange(5)
        return np.stack([0.001 * (1 + steps), 0 * steps], axis=-1)[None]

    roll_out(policy, seeds=[3], image_size=16, max_steps=7, execute=3)
    assert [step for step, _ in asked] == [0, 3, 6]
    start = PlanarArm([3]).joints[0, 0]
    np.testing.assert_allclose([state - start for _, state in asked], [0, 0.006, 0.021], atol=1e-6)


def test_the_end_of_an_episode_counts_not_what_follows():
    seeds = SEEDS[:20]
    expert = expert_policy(seeds, horizon=1)

    def leaves_after_success(observation, control_step):
        return expert(observation, control_step) if control_step < 12 else np.full((20, 1, 2), 0.15)

    rollouts = roll_out(leaves_after_success, seeds=seeds, image_size=16, max_steps=30, execute=1)
    assert 0 < rollouts.success.sum() < 20
    assert rollouts.final_distance[rollouts.success].max() < 0.1
    assert (rollouts.steps[rollouts.success] <= 12).all() and (rollouts.steps[~rollouts.success] == 30).all()


def test_a_policy_of_the_wrong_shape_or_not_finite_is_refused():
    setting = {"seeds": [1, 2], "image_size": 16, "max_steps": 3, "execute": 1}
    with pytest.raises(ValueError, match=r"shape \(2, 4, 32\)"):
        roll_out(lambda observation, step: np.zeros((2, 4, 32)), **setting)
    with pytest.raises(ValueError, match="not finite at control step 0"):
        roll_out(lambda observation, step: np.full((2, 4, 2), np.nan), **setting)


def test_wilson_interval():
    np.testing.assert_allclose(wilson_interval(90, 100), (0.825633, 0.944772), atol=1e-5)
    np.testing.assert_allclose(wilson_interval(0, 10), (0, 0.277533), atol=1e-5)
    np.testing.assert_allclose(wilson_interval(10, 10), (0.722467, 1), atol=1e-5)
    with pytest.raises(ValueError):
        wilson_interval(3, 2)


def test_video(tmp_path):
    seeds = SEEDS[:3]
    rollouts = roll_out(expert_policy(seeds), seeds=seeds, image_size=16, max_steps=60, execute=4, video=2)
    assert len(rollouts.frames) > rollouts.steps.max()
    write_video(tmp_path / "rollout.mp4", rollouts.frames)
    with av.open(str(tmp_path / "rollout.mp4")) as container:
        decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert decoded.shape == rollouts.frames.shape
    assert np.abs(decoded.astype(int) - rollouts.frames).mean() < 4

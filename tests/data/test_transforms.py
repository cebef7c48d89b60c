"""Images resized with their aspect kept, and a row of a recording turned into an example."""

import pickle

import numpy as np
import pytest
from fake_recording import FakeRecording, transform_of
from PIL import Image

from sharder.data.transforms import resize_with_pad
from sharder.errors import UserError


@pytest.mark.parametrize(
    ("height", "width", "size", "rows", "columns"),
    [
        (480, 640, 224, (28, 196), (0, 224)),
        (640, 480, 224, (0, 224), (28, 196)),
        (100, 301, 60, (20, 39), (0, 60)),  # int(100 / (301 / 60)) = 19 rows: 20 above, 21 below
        (4, 8, 16, (4, 12), (0, 16)),  # enlarged
        (2, 1000, 10, (4, 5), (0, 10)),  # at least one row is left
    ],
)
def test_aspect_is_kept_and_padding_is_black(height, width, size, rows, columns):
    padded = resize_with_pad(np.full((height, width, 3), 200, np.uint8), size)
    expected = np.zeros((size, size, 3), np.uint8)
    expected[slice(*rows), slice(*columns)] = 200
    np.testing.assert_array_equal(padded, expected)
    assert padded.dtype == np.uint8


def test_shrinking_is_antialiased():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    shrunk = resize_with_pad(stripes, 16)
    assert np.abs(shrunk[:, 2:-2].astype(int) - 100).max() <= 8
    expected = np.asarray(Image.fromarray(stripes).resize((16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(shrunk, expected)


def test_an_image_of_the_size_already_is_returned_itself():
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert resize_with_pad(image, 16) is image


def test_an_example():
    recording = FakeRecording(100)
    transform = transform_of(recording)
    example = transform(recording, 30)
    assert set(example) == {"images", "image_masks", "tokens", "token_mask", "state", "actions"}
    assert set(example["images"]) == set(example["image_masks"]) == {"base_0_rgb", "left_wrist_0_rgb"}
    assert example["images"]["left_wrist_0_rgb"].shape == (16, 16, 3)
    assert example["images"]["left_wrist_0_rgb"][8, 8].tolist() == [30, 0, 1]
    assert all(mask.dtype == bool and mask for mask in example["image_masks"].values())
    assert bytes(token - 2 for token in example["tokens"][1:21]).decode() == "touch the green box\n"
    assert example["token_mask"].sum() == 21
    wide = recording.states.astype(np.float64)
    np.testing.assert_allclose(example["state"][:4], (wide[30] - wide.mean(0)) / (wide.std(0) + 1e-6), rtol=1e-6)
    assert example["state"].dtype == np.float32 and example["state"][4:].tolist() == [0] * 4
    assert example["actions"].shape == (4, 8) and not example["actions"][:, 3:].any()
    chunk = transform.robot_actions(example["actions"])
    np.testing.assert_allclose(chunk, recording.actions[30:34], atol=1e-5)


def test_the_last_action_of_an_episode_is_repeated():
    recording = FakeRecording(100)
    actions = transform_of(recording)(recording, 48)["actions"]
    np.testing.assert_array_equal(actions[1:], np.repeat(actions[1:2], 3, axis=0))
    assert (actions[0] != actions[1]).any()


def test_pi05_spells_the_state_without_padding_and_uses_quantiles():
    recording = FakeRecording(100)
    recording.states[5] = np.quantile(recording.states.astype(np.float64), 0.5, axis=0)
    transform = transform_of(recording, variant="pi05", prompt_tokens=80, prompt="go_on")
    example = transform(recording, 5)
    text = bytes(token - 2 for token in example["tokens"][example["token_mask"]][1:]).decode()
    assert text.startswith("Task: go on, State: ") and text.endswith(";\nAction: ")
    bins = [int(number) for number in text.split("State: ")[1].split(";")[0].split()]
    assert bins == ((example["state"][:4] + 1) * 128).astype(int).tolist() and len(bins) == 4
    q01, q99 = np.quantile(recording.actions.astype(np.float64), [0.01, 0.99], axis=0)
    expected = 2 * (recording.actions[5] - q01) / (q99 - q01 + 1e-6) - 1
    np.testing.assert_allclose(example["actions"][0, :3], expected, rtol=1e-4)


def test_none_leaves_values_as_recorded():
    recording = FakeRecording(100)
    example = transform_of(recording, normalization="none")(recording, 7)
    np.testing.assert_array_equal(example["state"][:4], recording.states[7])


def test_a_given_frame_takes_the_place_of_decoding():
    recording = FakeRecording(100)
    frame = np.full((16, 16, 3), 9, np.uint8)
    example = transform_of(recording)(recording, 7, lambda row, camera: frame)
    assert example["images"]["base_0_rgb"] is frame and recording.image_calls == 0


def test_it_pickles():
    recording = FakeRecording(100)
    transform = transform_of(recording)
    again = pickle.loads(pickle.dumps(transform))
    np.testing.assert_array_equal(again(recording, 3)["actions"], transform(recording, 3)["actions"])


@pytest.mark.parametrize("wide", ["state_dim", "action_dim"])
def test_more_joints_than_the_model_has_are_refused(wide):
    key = wide.removesuffix("_dim")
    with pytest.raises(UserError, match=rf"26 joints > model\.action_dim=8: data\.{key}=.*at least 26"):
        transform_of(FakeRecording(50, **{wide: 26}))


def test_prompts_are_checked_before_anything_is_decoded_and_never_cut():
    recording = FakeRecording(100)
    transform = transform_of(recording, prompt_tokens=20)
    with pytest.raises(UserError, match=r"up to 21 tokens but model\.prompt_tokens=20: 50 of 100"):
        transform.check_prompts(recording)
    assert recording.image_calls == 0
    with pytest.raises(UserError, match=r"needs 21 tokens"):
        transform(recording, 30)
    assert transform_of(recording, variant="pi05", prompt_tokens=80).check_prompts(recording) > 40

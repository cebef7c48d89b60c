"""Normalization: the same whatever the order of rows, small values whatever the data, a file that round-trips."""

import json
import logging
import tracemalloc

import numpy as np
import pytest
from fake_recording import FakeRecording

from sharder.data.norm_stats import cached, normalization_of, read, write
from sharder.data.normalize import compute, normalise, report, resolve_mode, scaling, unnormalise
from sharder.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_agrees_with_numpy_in_float64():
    recording = FakeRecording(1000)
    stats = compute(recording.states, recording.actions)
    wide = recording.actions.astype(np.float64)
    np.testing.assert_allclose(stats.actions.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.actions.std, wide.std(0), rtol=1e-12)
    np.testing.assert_array_equal(stats.actions.q01, np.quantile(wide, 0.01, axis=0))
    np.testing.assert_array_equal(stats.actions.q99, np.quantile(wide, 0.99, axis=0))
    assert stats.state.mean.dtype == stats.state.q99.dtype == np.float64 and stats.state.dims == 4


def test_two_robots_merged_keep_their_true_quantiles():
    random = np.random.default_rng(0)
    merged = np.concatenate([random.normal(0, 1, (100_000, 1)), random.normal(5, 1, (100_000, 1))])
    stats = compute(merged.astype(np.float32), merged.astype(np.float32)).state
    np.testing.assert_allclose([stats.q01[0], stats.q99[0]], [-2.06, 7.06], atol=0.03)


def test_the_order_of_rows_does_not_matter():
    random = np.random.default_rng(1)
    values = random.normal([0, 1e3, -1e4], 1e-3, (200_000, 3)).astype(np.float32)
    first = compute(values, values).state
    other = compute(values[random.permutation(len(values))], values).state
    np.testing.assert_allclose(first.mean, other.mean, rtol=1e-9)
    np.testing.assert_allclose(first.std, other.std, rtol=1e-9)
    np.testing.assert_array_equal(first.q01, other.q01)
    np.testing.assert_allclose(first.std[1], values[:, 1].astype(np.float64).std(), rtol=1e-9)


def test_a_million_rows_are_never_copied_whole():
    values = np.random.default_rng(2).random((1_000_000, 14), np.float32)
    tracemalloc.start()
    stats = compute(values, values[:, :1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < values.nbytes
    np.testing.assert_allclose(stats.state.mean, 0.5, atol=2e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(bad):
    recording = FakeRecording(100)
    recording.states[70, 2] = bad
    with pytest.raises(UserError, match=rf"state dimension 2 is {bad} in row 70"):
        compute(recording.states, recording.actions)


def test_the_formulas():
    stats = compute(np.array([[0.0], [2.0], [4.0]]), np.zeros((3, 1))).state
    np.testing.assert_allclose(normalise(stats, np.array([4.0]), "mean_std"), 2 / (np.sqrt(8 / 3) + 1e-6), rtol=1e-6)
    q01, q99 = 0.04, 3.96
    expected = 2 * (4 - q01) / (q99 - q01 + 1e-6) - 1
    np.testing.assert_allclose(normalise(stats, np.array([4.0]), "quantiles"), expected, rtol=1e-6)
    assert normalise(stats, np.array([4.0]), "none") == 4


@pytest.mark.parametrize("mode", ["mean_std", "quantiles", "none"])
def test_unnormalise_is_the_inverse_and_drops_padding(mode):
    recording = FakeRecording(500)
    recording.actions[:, 1] = 3.0  # constant: floored
    stats = compute(recording.states, recording.actions).actions
    normalised = normalise(stats, recording.actions, mode, 1e-2)
    assert normalised.dtype == np.float32
    padded = np.pad(normalised, ((0, 0), (0, 5)))
    np.testing.assert_allclose(unnormalise(stats, padded, mode, 1e-2), recording.actions, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean_std", "quantiles"])
def test_a_nearly_constant_dimension_stays_small_about_its_centre(mode):
    """Field: a range of 0.00098 sent the value 0 to about -3200."""
    values = np.random.default_rng(3).normal(0, 1, (1000, 2)).astype(np.float32)
    values[:, 1] = np.linspace(1.57, 1.57098, 1000)
    stats = compute(values, values).state
    floor = scaling(stats, mode, 1e-2)
    assert floor.floored.tolist() == [False, True]
    assert np.abs(floor.normalise(values)[:, 1]).max() < 0.25
    assert abs(float(floor.normalise(values)[:, 1].mean())) < 1e-3
    assert np.abs(normalise(stats, values, mode)[:, 1]).max() > 1  # without the floor
    np.testing.assert_array_equal(floor.normalise(values)[:, 0], normalise(stats, values, mode)[:, 0])


def test_report_names_floored_dimensions_and_the_largest_value(caplog):
    recording = FakeRecording(1000)
    recording.states[:, 3] = 0.5
    recording.actions[17, 2] = 100.0
    stats = compute(recording.states, recording.actions)
    with caplog.at_level(logging.INFO):
        found = report(stats, recording, "quantiles", 1e-2)
    assert found.floored == ["state joint3"]
    whole = normalise(stats.actions, recording.actions, "quantiles", 1e-2)
    assert found.largest == pytest.approx(float(np.abs(whole).max()))
    assert found.largest_name == "action motor2"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "state joint3" in caplog.text and "data.min_range=0.01" in caplog.text and "action motor2" in caplog.text


def test_a_set_in_order_warns_of_nothing(caplog):
    recording = FakeRecording(1000)
    with caplog.at_level(logging.WARNING):
        found = report(compute(recording.states, recording.actions), recording, "mean_std", 1e-2)
    assert found.floored == [] and not caplog.records


def test_the_file_round_trips_bit_for_bit(tmp_path):
    recording = FakeRecording(300)
    stats = compute(recording.states, recording.actions)
    write(tmp_path / "norm_stats.json", stats)
    assert set(json.loads((tmp_path / "norm_stats.json").read_text())["norm_stats"]) == {"state", "actions"}
    again = read(tmp_path / "norm_stats.json", 4, 3, "quantiles")
    for field in ("state", "actions"):
        for name in ("mean", "std", "q01", "q99"):
            np.testing.assert_array_equal(getattr(getattr(again, field), name), getattr(getattr(stats, field), name))
    assert [path.name for path in tmp_path.iterdir()] == ["norm_stats.json"]


def openpi_file(path, dims=32, drop=(), **changes):
    vectors = {name: [value] * dims for name, value in (("mean", 0.0), ("std", 1.0), ("q01", -2.0), ("q99", 2.0))}
    state = {name: vector for name, vector in (vectors | changes).items() if name not in drop}
    path.write_text(json.dumps({"norm_stats": {"state": state, "actions": vectors}}))
    return path


def test_vectors_padded_by_openpi_are_cut(tmp_path):
    stats = normalization_of(FakeRecording(), openpi_file(tmp_path / "n.json"), "quantiles")
    assert stats.state.dims == 4 and stats.actions.dims == 3 and stats.actions.q99.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, r"n\.json does not exist"),
        (lambda path: path.write_text("{") and path, r"n\.json cannot be read as JSON"),
        (lambda path: path.write_text("[]") and path, r"n\.json is not a norm_stats"),
        (lambda path: openpi_file(path, dims=3), r"n\.json: state\.mean has 3 dimensions, the recording 4"),
        (lambda path: openpi_file(path, drop=["q99"]), r"n\.json: state has no q01 and q99.*normalization_file=null"),
        (lambda path: openpi_file(path, drop=["std"]), r"state\.std should be a list of 4 numbers"),
        (lambda path: openpi_file(path, std=[-1.0] * 4), r"state\.std is negative in dimension 0"),
        (lambda path: openpi_file(path, mean=[float("nan")] * 4), r"state\.mean is nan"),
        (lambda path: openpi_file(path, q01=[3.0] * 4), r"state\.q99 is below q01"),
    ],
)
def test_a_bad_file_is_named(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        read(make(tmp_path / "n.json"), 4, 3, "quantiles")


def test_quantiles_may_be_missing_where_they_are_not_used(tmp_path):
    stats = read(openpi_file(tmp_path / "n.json", drop=["q01", "q99"]), 4, 3, "mean_std")
    assert stats.state.q01 is None
    with pytest.raises(UserError, match="normalization_file=null"):
        scaling(stats.state, "quantiles")


def test_computed_once_and_again_when_the_cache_is_damaged(tmp_path, caplog):
    recording = FakeRecording(200)
    first = cached(recording)
    (path,) = (tmp_path / "cache").rglob("fake200.json")
    recording.states = recording.states + 1  # same fingerprint: the cache answers
    np.testing.assert_array_equal(cached(recording).state.mean, first.state.mean)
    path.write_text(path.read_text()[:100])
    np.testing.assert_allclose(cached(recording).state.mean, first.state.mean + 1, rtol=1e-6)
    assert "fake200.json" in caplog.text
    np.testing.assert_allclose(read(path, 4, 3, "quantiles").state.mean, first.state.mean + 1, rtol=1e-6)


def test_auto_follows_the_model():
    assert [resolve_mode("auto", variant) for variant in ("pi0", "pi05")] == ["mean_std", "quantiles"]
    assert resolve_mode("none", "pi05") == "none"
    with pytest.raises(UserError, match=r"data\.normalization=minmax is not one of auto, mean_std"):
        resolve_mode("minmax", "pi0")

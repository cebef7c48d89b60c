"""The window of an attempt: what its time is said to be, and that a trace that fails ends no run."""

import json
import logging
from types import SimpleNamespace

import jax
import pytest
from micro import micro_config

from sharder.measure.breakdown import WINDOW
from sharder.parallel.mesh import make_mesh
from sharder.training import profiling
from sharder.training.clock import HOST, PAUSE, Clock
from sharder.training.profiling import Profile
from sharder.training.program import make_program
from sharder.training.rates import make_rates

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")


class Window:
    """A profile of steps 5 and 6, on a clock that goes only when it is told to."""

    def __init__(self, tmp_path):
        self.seconds = 0.0
        self.folder = tmp_path / "run"
        self.folder.mkdir()
        config = micro_config(tmp_path, steps=14)
        config.profile.name, config.profile.after_steps, config.profile.steps = "window", 5, 2
        program = make_program(config, make_mesh(config.mesh), CAMERAS)
        self.clock = Clock(lambda: self.seconds)
        with self.clock.dispatching():
            pass
        self.clock.done()
        compiled = SimpleNamespace(as_text=lambda: "HloModule jit_train_step")
        self.profile = Profile(program, make_rates(program), compiled, self.folder, 0, self.clock)

    def passes(self, seconds):
        self.seconds += seconds


@pytest.fixture
def window(tmp_path, monkeypatch):
    """The profiler takes 3 s to start and 2 s to stop."""
    window = Window(tmp_path)
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: window.passes(3))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: window.passes(2))
    return window


def test_a_save_within_the_window_is_told_apart_from_a_slow_host(window):
    window.profile.begin()
    window.passes(0.25)
    with window.clock.host(PAUSE):
        window.passes(0.5)
    window.clock._count()
    window.profile.end()
    told = json.loads((window.folder / "profile/process-0" / WINDOW).read_text())
    assert told["waiting_ms"] == pytest.approx({"data": 0, "peers": 0, "pause": 500, "host": 250})


def test_the_profiler_s_own_time_is_nobody_s_step(window):
    window.profile.begin()
    window.profile.end()
    assert window.clock.lap().seconds == pytest.approx({PAUSE: 5})
    assert window.clock.total.of(HOST) == 0


def test_a_folder_that_cannot_be_made_ends_no_run(window, caplog):
    (window.folder / "profile").write_text("in the way")
    window.profile.begin()
    window.profile.end()
    window.profile.report(None, None, pytest.fail)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("profile=window: no trace, and the training goes on ([Errno 20] Not a directory")


def test_a_window_that_cannot_be_read_ends_no_run(window, caplog):
    """The program of this one is none."""
    window.profile.begin()
    window.profile.end()
    window.profile.report(None, None, pytest.fail)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("profile=window: no breakdown, and the training goes on (profile: ")
    assert "train_step.hlo.txt.gz cannot be read" in error


def test_a_process_without_a_trace_meets_the_others_in_the_ablation(window, monkeypatch):
    ablated = []
    monkeypatch.setattr(profiling, "ablate", lambda *_: ablated.append(True))
    window.profile._program.config.profile.ablation = True
    (window.folder / "profile").write_text("in the way")
    window.profile.begin()
    window.profile.end()
    window.profile.report(None, None, pytest.fail)
    assert ablated == [True]

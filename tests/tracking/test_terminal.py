"""What people see of a run."""

import io

from rich.console import Console

from sharder.tracking.sinks import Tracker
from sharder.tracking.terminal import Terminal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_come_now_and_then_and_the_last_one_always() -> None:
    out, clock = io.StringIO(), Clock()
    terminal = Terminal(0, 100, Console(file=out, width=200), clock)
    for step in range(0, 50, 10):
        terminal.log({"step": step, "loss": 1 / (step + 1), "step_ms": 12.3, "data_wait_ms": 0.4, "lr": 1.0})
        clock.now += 4.0
    terminal.close()
    assert out.getvalue().splitlines() == [
        "step 0/100  loss 1.0000  12 ms a step  data wait 0 ms",
        "step 30/100  loss 0.0323  12 ms a step  data wait 0 ms",
        "step 40/100  loss 0.0244  12 ms a step  data wait 0 ms",
    ]


def test_a_bar_shows_the_newest_row_and_messages_stand_above_it() -> None:
    out = io.StringIO()
    terminal = Terminal(20, 100, Console(file=out, width=150, force_terminal=True, color_system=None))
    terminal.message("camera [left_wrist_0_rgb] is missing")
    terminal.log({"step": 30, "loss": 0.5, "step_ms": 12.3})
    terminal.close()
    text = out.getvalue()
    assert "camera [left_wrist_0_rgb] is missing" in text
    assert "30/100" in text
    assert "loss 0.5000  12 ms a step" in text


def test_a_row_without_progress_is_not_shown() -> None:
    out = io.StringIO()
    terminal = Terminal(0, 100, Console(file=out), Clock())
    terminal.log({"step": 0, "success_rate": 0.5})
    terminal.close()
    assert out.getvalue() == ""


class Recording:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def log(self, row: object) -> None:
        self.heard.append(row)

    def message(self, text: str) -> None:
        self.heard.append(text)

    def close(self, hurry: bool) -> None:
        self.heard.append("closed in a hurry" if hurry else "closed")


def test_a_tracker_tells_every_sink_in_order_and_closes_on_errors() -> None:
    sinks = [Recording(), Recording()]
    try:
        with Tracker(sinks) as tracker:
            tracker.message("hello")
            tracker.log({"step": 1})
            raise KeyError
    except KeyError:
        pass
    assert [sink.heard for sink in sinks] == [["hello", {"step": 1}, "closed in a hurry"]] * 2


def test_a_tracker_takes_its_time_at_a_good_end() -> None:
    sink = Recording()
    with Tracker([sink]):
        pass
    assert sink.heard == ["closed"]

"""The panel and the lines of a run, at any width and from any result."""

import io
import math
import os
import pty
import re
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from rlrun.cli.arguments import console_style
from rlrun.experiment.report.console import LiveFrame, choose_style, result_line
from rlrun.experiment.report.console_state import ConsoleState, RunHeader
from rlrun.experiment.report.numbers import clock_time
from rlrun.experiment.report.panel import draw, sparkline
from rlrun.experiment.stopping import StopCriteria

FOLDER = Path("runs/ppo_cartpole/20260102-030405-s1")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make(stop=None, runners=2):
    stop = {"episode_return_mean": 475, "env_steps": 10_000} if stop is None else stop
    criteria = StopCriteria(stop, smoothing_episodes=100)
    header = RunHeader("PPO", "CartPole-v1", 1, FOLDER, runners, criteria)
    clock = Clock()
    return ConsoleState(header, clock=clock), clock


def result(i, mean=None, episodes=12):
    return {
        "training_iteration": i,
        "env_steps": 1000 * i,
        "env_steps_this_iter": 1000,
        "episodes": episodes * i,
        "episodes_this_iter": episodes,
        "episode_return_mean": 10.0 * i if mean is None else mean,
        "episodes_in_mean": min(100, episodes * i),
        "episode_len_mean": 10.0,
        "env_steps_per_s": 5000.0,
        "env_runners": {"healthy": 1, "restarts": 1, "longest_running_episode": 9000},
        "learners": {"default_policy": {"learner_stats": {"approx_kl": 0.01, "entropy": None}}},
        "evaluation": {"episode_return_mean": 99.0, "episode_return_std": 1.5},
        "timers": {"sample_s": 0.3, "learn_s": 0.1, "other_s": 0.0},
    }


def frame(state, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(draw(state, width))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_every_line_of_the_panel_is_as_wide_as_the_terminal(width, iterations):
    state, clock = make()
    for i in range(1, iterations + 1):
        clock.now += 2
        state.update(result(i))
    lines = frame(state, width)
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) <= 16


def test_the_panel_shows_statistics_of_other_algorithms_while_there_is_room():
    state, _ = make()
    own = {"critic_loss": 0.5, "mine": 2.0, "lr": 0.1}
    state.update({**result(1), "learners": {"default_policy": {"learner_stats": own}}})
    some = "lr 0.1 · critic_loss 0.5"
    for width, shown in ((100, f"{some} · mine 2"), (40, some)):
        (line,) = (line for line in frame(state, width) if "learner" in line)
        assert line.split("learner")[1].strip("│ ") == shown


def test_the_panel_shows_progress_speed_runners_and_checkpoints():
    state, clock = make()
    state.saved, state.best_saved = "000004", "000002"
    for i in range(1, 6):
        clock.now += 2
        state.update(result(i))
    text = "\n".join(frame(state, 100))
    for words in (
        "PPO · CartPole-v1 · seed 1 · 0:00:10",
        str(FOLDER),
        "5,000 env steps/s · iteration 5",
        "5,000 / 10,000  ~0:00:10",
        "50 / 475",
        "sample 75%",
        "learn 25%",
        "1 of 2 healthy · 1 restart",
        "99 ± 1.50 at iteration 5",
        "checkpoint 000004 · best 000002",
        "kl 0.01",
    ):
        assert words in text


def test_the_panel_of_a_run_without_episodes():
    state, _ = make()
    state.update(result(1, mean=math.nan, episodes=0))
    assert "no episode has ended yet" in "\n".join(frame(state, 80))


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [([], 5, ""), ([3, 3, 3], 5, "▁▁▁"), ([0, 7], 8, "▁█"), (range(800), 8, "▁▂▃▄▅▆▇█")],
)
def test_sparklines(values, width, line):
    assert sparkline(values, width) == line


def test_the_history_of_returns_is_bounded_and_keeps_its_shape():
    state, _ = make()
    for i in range(5000):
        state.update(result(1, mean=float(i)))
    returns = [value for _, value in state.returns.points]
    assert 256 <= len(returns) <= 512
    assert returns == sorted(returns)
    assert returns[0] < 100
    assert returns[-1] == 4999


def test_the_share_of_a_negative_goal_starts_at_the_first_return():
    state, _ = make({"episode_return_mean": -100})
    (criterion,) = state.header.stop.bounds
    assert state.share(criterion) == 0
    for mean, share in [(-500, 0), (-300, 0.5), (-600, 0), (-100, 1), (0, 1)]:
        state.update(result(1, mean=mean))
        assert state.share(criterion) == share
        assert state.left_s(criterion) is None


def test_the_history_begins_with_earlier_sessions():
    state, _ = make()
    state.recall([result(i) for i in range(1, 12)])
    assert state.returns.points == [(i, 10.0 * i) for i in range(1, 12)]
    assert state.best_return == 110.0
    assert state.result is None


def test_the_best_return_is_of_a_full_window():
    state, _ = make()
    state.update(result(1, mean=500.0))
    assert state.best_return is None
    state.update(result(10, mean=90.0))
    state.update(result(11, mean=80.0))
    assert state.best_return == 90.0


def test_iterations_without_episodes_give_one_warning():
    state, _ = make()
    warnings = []
    for i in range(30):
        state.update(result(i, episodes=0))
        warnings.append(state.dry_spell())
    (text,) = [line for line in warnings if line]
    assert "10,000 env steps" in text
    assert "9,000 env steps" in text
    assert "\n" not in text
    state.update(result(31, episodes=1))
    assert state.dry_spell() is None


def test_iterations_that_sample_nothing_are_not_warned_of():
    state, _ = make()
    for i in range(30):
        state.update(result(i, episodes=0) | {"env_steps_this_iter": 0})
        assert state.dry_spell() is None


def test_one_line_an_iteration():
    state, clock = make()
    clock.now = 61
    state.update(result(3))
    line = result_line(state)
    assert "\n" not in line
    for words in ("env_steps      3,000", "30.00", "sample 75%", "evaluation 99.00", "0:01:01"):
        assert words in line


def test_a_line_has_the_success_rate_and_further_goals():
    state, _ = make({"level": 3, "episode_return_mean": 475})
    found = result(3)
    found["env_runners"]["success_rate"] = 0.75
    state.update({**found, "level": 2, "evaluation": {"success_rate": 0.5}})
    line = result_line(state)
    assert "  success_rate 0.75  evaluation/success_rate 0.5  level 2  " in line
    assert "75% successful" in "\n".join(frame(state, 100))
    state.update({**found, "level": 2, "evaluation": {"success_rate": None}})
    assert "evaluation" not in result_line(state)


def test_a_goal_in_evaluations_keeps_its_value_between_them():
    state, _ = make({"evaluation/success_rate": 0.9})
    for rate in (0.0, 0.45, None):
        state.update({**result(1), "evaluation": {"success_rate": rate}})
    assert "0.45 / 0.9 " in "\n".join(frame(state, 100))
    assert state.share("evaluation/success_rate") == 0.5


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert choose_style() == "panel"
    monkeypatch.setenv("TERM", "dumb")
    assert choose_style() == "lines"


def test_a_pipe_gets_lines_and_quiet_wins(monkeypatch):
    assert choose_style() == "lines"
    monkeypatch.setattr("sys.stdout", None)  # closed by the shell
    assert choose_style() == "lines"
    assert console_style(quiet=True, plain=True) == "quiet"


def test_a_frame_leaves_room_for_the_terminals_own_echo_of_ctrl_c(monkeypatch):
    """In a full line the echo would wrap, and a border of the panel would be left above."""
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    live = LiveFrame()
    live.start_frame(lambda width, height: width * "=", frames_per_s=0.1)
    live.close()
    assert set(re.findall("=+", terminal.getvalue())) == {58 * "="}


UP, SHOWS_CURSOR = "\x1b[1A", "\x1b[?25h"
BREAKS = """
import sys
from pathlib import Path
from rlrun.experiment.report.console import PanelConsole
from rlrun.experiment.report.console_state import RunHeader
from rlrun.experiment.stopping import StopCriteria

header = RunHeader("PPO", "env", 1, Path("run"), 0, StopCriteria({}, smoothing_episodes=100))
console = PanelConsole(header, [])

def step():
    breakpoint()
    return "done"

step()
console.write({"training_iteration": 1, "env_steps": 7})
console.close()
assert sys.breakpointhook is sys.__breakpointhook__
"""


@pytest.fixture
def broken(tmp_path, monkeypatch, request):
    """A process in a terminal that calls `breakpoint` under the panel: what it says to a text."""
    (tmp_path / "breaks.py").write_text(BREAKS)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PYTHONBREAKPOINT", getattr(request, "param", ""))
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, tmp_path / "breaks.py"])

    def said(seconds, *, until=b"\0", text=b""):
        os.write(terminal, text)
        found, end = b"", time.monotonic() + seconds
        with suppress(OSError):  # the process has ended
            while until not in found and (left := end - time.monotonic()) > 0:
                if select.select([terminal], [], [], left)[0]:
                    found += os.read(terminal, 65536)
        return found.decode()

    yield said
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_panel_is_drawn_over_a_debugger(broken):
    shown = broken(30, until=b"(Pdb) ")
    assert "rlrun" in shown
    # Python 3.13 stops at the call, earlier versions behind it.
    assert re.search(r"breaks\.py\(1[23]\)step\(\)\r\n-> \w+.*\r\n\(Pdb\) $", shown)
    assert broken(0.6) == "", "in which two frames would be drawn"
    again = broken(30, text=b"c\n")
    assert UP not in again.partition("rlrun")[0], "the panel is drawn below the session"
    assert "iteration 1" in again


@pytest.mark.parametrize("broken", ["0"], indirect=True)
def test_breakpoints_that_are_switched_off_leave_the_panel_alone(broken):
    assert broken(30).count(SHOWS_CURSOR) == 1


def test_clock_time():
    assert [clock_time(s) for s in (0, 59.9, 3600 + 61)] == ["0:00:00", "0:00:59", "1:01:01"]

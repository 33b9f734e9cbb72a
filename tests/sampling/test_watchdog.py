"""Environments that do not come back, and those that end their process."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hanging_envs import Hanging

from rlrun import EnvRunner, RunnerSpec
from rlrun.actors.env_runner_group import env_spaces
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.envs.errors import EnvError
from rlrun.envs.serial_vector_env import SerialVectorEnv
from rlrun.envs.watchdog import close_in_time

LIMIT_S = 0.12


@pytest.fixture
def runner() -> Iterator[Callable[..., EnvRunner]]:
    """Makes runners of the hanging environment, and stops them."""
    made = []

    def make(
        mode: str = "sync", limit_s: float | None = LIMIT_S, rebuilt: bool = False, **how: Any
    ) -> EnvRunner:
        settings = EnvRunnersConfig(
            gym_env_vectorize_mode=mode, rollout_fragment_length=20, disable_env_checking=True
        )
        env = EnvSpec(use="hanging_envs:Hanging", kwargs=how)
        spec = RunnerSpec(
            env, settings, env_timeout_s=limit_s, restart_failed_sub_environments=rebuilt
        )
        made.append(EnvRunner(spec))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("how", ["sleep", "loop"])
@pytest.mark.parametrize(("where", "at"), [("constructor", 0), ("reset", 2), ("step", 8)])
def test_a_call_that_does_not_return_is_an_error_with_its_place(runner, how, where, at):
    with pytest.raises(EnvError, match=r"no answer within fault_tolerance.env_timeout_s=0.12") as e:
        runner(how=how, where=where, at=at).sample()
    assert e.value.phase == where
    assert "hanging_envs.py" in e.value.user_traceback  # where it hung
    assert e.value.env_step == (7 % 5 if where == "step" else -1)


def test_a_sub_environment_that_hangs_is_built_again_like_one_that_raises(runner, caplog):
    batch = runner(how="sleep", rebuilt=True).sample()
    assert len(batch) == 20
    assert "is rebuilt in runner 0, sub-env 0" in caplog.text
    assert "EnvTimeoutError: no answer" in caplog.text


def test_calls_may_take_long_together_and_without_a_limit(runner):
    for limit_s in (5.0, None):
        assert len(runner(limit_s=limit_s, at=1000).sample()) == 20


def watching():
    return {thread for thread in threading.enumerate() if thread.name == "watchdog"}


def test_no_calls_are_watched_of_a_runner_that_could_not_be_built():
    before = watching()
    spec = RunnerSpec(EnvSpec(use="counting_envs:FailsInConstructor"), env_timeout_s=5.0)
    with pytest.raises(EnvError) as raised:
        EnvRunner(spec)
    for thread in watching() - before:
        thread.join(2.0)
        assert not thread.is_alive(), raised  # which refers to the runner


def test_calls_are_watched_until_the_runner_stops(runner):
    before = watching()
    stopped = runner(at=1000)
    (thread,) = watching() - before
    stopped.stop()
    thread.join(5.0)
    assert not thread.is_alive()


@pytest.mark.faults
@pytest.mark.parametrize("how", ["sleep", "loop"])
def test_in_a_process_of_its_own_as_well(runner, how):
    with pytest.raises(EnvError, match="no answer within") as e:
        runner("async", how=how, at=8).sample()
    assert "hanging_envs.py" in e.value.user_traceback


@pytest.mark.parametrize(
    ("how", "said"),
    [("sleep", "EnvTimeoutError: no answer within 0.12 s"), ("raises", "ZeroDivisionError")],
)
def test_an_environment_that_does_not_close_is_only_warned_of(caplog, how, said):
    close_in_time(SerialVectorEnv([Hanging(how, "close", at=1)], "Hanging").close, LIMIT_S)
    assert f"an environment failed to close: {said}" in caplog.text


def test_the_environment_that_only_told_its_spaces_may_fail_to_close(runner, caplog):
    runner("async", how="raises", where="close", at=1)
    assert "an environment failed to close: ZeroDivisionError" in caplog.text
    caplog.clear()
    spaces = env_spaces(
        RunnerSpec(
            EnvSpec(
                use="hanging_envs:Hanging", kwargs={"how": "raises", "where": "close", "at": 1}
            ),
            EnvRunnersConfig(),
        )
    )
    assert spaces == (Hanging.observation_space, Hanging.action_space)
    assert "an environment failed to close: ZeroDivisionError" in caplog.text


def test_an_environment_that_fails_to_close_leaves_no_other_one_open():
    envs = [Hanging("raises", "close", at=1) for _ in range(3)]
    closed = []
    envs[1].close = lambda: closed.append(1)
    with pytest.raises(ZeroDivisionError):
        SerialVectorEnv(envs, "Hanging").close()
    assert closed == [1]


def test_alarms_of_the_program_reach_its_own_handler_after_environments_were_closed():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        for _ in range(2):
            close_in_time(lambda: None)
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [signal.SIGALRM] * 2


@pytest.mark.faults
def test_c_code_that_keeps_the_interpreters_lock_is_ended_with_its_process(runner):
    with pytest.raises(EnvError, match="no answer within"):
        runner("async", how="keep lock", at=8).sample()


@pytest.mark.parametrize("where", ["constructor", "reset", "step"])
@pytest.mark.parametrize(
    ("how", "said"), [("sys.exit", "SystemExit: 3"), ("GeneratorExit", "GeneratorExit")]
)
def test_an_environment_that_exits_is_an_error(runner, where, how, said):
    with pytest.raises(EnvError, match=said):
        runner(how=how, where=where, at=1).sample()


@pytest.mark.faults
@pytest.mark.parametrize(("how", "said"), [("sys.exit", "SystemExit: 3"), ("os._exit", "code 7")])
def test_an_exit_in_a_process_of_its_own_is_told(runner, how, said):
    with pytest.raises(EnvError, match=said):
        runner("async", how=how).sample()

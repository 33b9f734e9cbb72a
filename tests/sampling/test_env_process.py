"""Sub-environments in processes of their own, and as Ray actors: what they return, what becomes of
failures, and acting for those that are ready.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from agent_runners import EXAMPLES, MLP
from counting_envs import Counter

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.envs import env_process, vector_env
from rlrun.envs.env_process import EnvHost, EnvProxy, ProcessEnv, ProxyMaker
from rlrun.envs.errors import EnvFailure
from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest

KINDS: dict[str, dict[str, Any]] = {
    "process": {"gym_env_vectorize_mode": "async"},
    "actor": {"remote_worker_envs": True},
}
pytestmark = pytest.mark.usefixtures("shared_actors")


class Fails(Counter):
    """Raises, or ends its process, in the fourth step of some episodes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, action: Any) -> Any:
        if self._seed % 3 == 2 and self._step == 3:
            if self._how == "dies":
                os._exit(7)
            raise RuntimeError("crash")
        return super().step(action)


class Waits(Counter):
    """The second sub-environment ends its first step once the first has made ten."""

    def __init__(self, context: Any, folder: str) -> None:
        super().__init__()
        self._first, self._steps, self._sign = context.vector_index == 0, 0, Path(folder) / "ten"

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._first and self._steps == 10:
            self._sign.touch()
        while not (self._first or self._sign.exists()):
            time.sleep(0.005)
        return super().step(action)


def runner_of(env: Any, num_envs: int = 2, several: bool = False, **settings: Any) -> EnvRunner:
    policies = MultiAgentSpec({"p": MLP}) if several else None
    runners = EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings)
    spec = RunnerSpec(
        EnvSpec.model_validate(env),
        runners,
        restart_failed_sub_environments=True,
        multi_agent=policies,
    )
    return EnvRunner(spec)


def trajectories(runner: EnvRunner, fragments: int = 2) -> dict[tuple[int, ...], list[Any]]:
    """(episode, agent) -> what was seen, done and rewarded, in the order of the steps."""
    found: dict[tuple[int, ...], list[Any]] = {}
    for k in range(fragments):
        batch = runner.sample_fragment(SampleRequest(k, 30)).batch
        for rows in batch.as_multi_agent().policy_batches.values():
            for row in rows.rows():
                step = row["t"], row["obs"].tolist(), row["actions"].tolist(), row["rewards"]
                found.setdefault((row["eps_id"], row["agent_index"]), []).append(step)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("several", [False, True])
def test_it_does_not_matter_where_sub_environments_are(kind: str, several: bool) -> None:
    env = f"{EXAMPLES}:MultiAgentCartPole" if several else "counting_envs:told_its_place"
    here, elsewhere = (runner_of(env, several=several, **where) for where in ({}, KINDS[kind]))
    weights = here.get_weights()
    elsewhere.set_weights(weights)
    assert trajectories(here) == trajectories(elsewhere)
    processes = elsewhere.foreach_env(lambda env: os.getpid())
    assert len({*processes, os.getpid()}) == 3
    assert here.foreach_env(lambda env: os.getpid()) == [os.getpid()] * 2
    if not several:  # they know whether they are actors
        places = elsewhere.foreach_env(lambda env: env.place)
        assert places == [(0, index, 0, kind == "actor") for index in range(2)]
    elsewhere.stop()


@pytest.mark.parametrize(
    ("kind", "how", "length"),
    [
        ("process", "raises", 20),
        ("process", "dies", 20),
        pytest.param("actor", "dies", 8, marks=pytest.mark.faults),
    ],
)
def test_a_failed_environment_is_replaced_and_its_episode_dropped(
    kind: str, how: str, length: int
) -> None:
    env = {"use": f"{__name__}:Fails", "how": how}
    runner, again = (runner_of(env, **KINDS[kind]) for _ in range(2))
    reply = runner.sample_fragment(SampleRequest(0, length))
    assert reply.faulty_episodes
    assert len(reply.batch) == 2 * length
    assert all(episode.seed % 3 != 2 for episode in reply.episodes)
    np.testing.assert_array_equal(reply.batch["obs"][:, 1], reply.batch["t"])
    again.set_state(runner.get_state())
    following = [one.sample_fragment(SampleRequest(1, 3)).batch["obs"] for one in (runner, again)]
    np.testing.assert_array_equal(*following)
    runner.stop()
    again.stop()
    assert not multiprocessing.active_children()


class Garbage:
    """A cycle that nothing refers to; writes down which process has collected it."""

    def __init__(self, path: Path) -> None:
        self._itself, self._path = self, path

    def __del__(self) -> None:
        self._path.write_text(str(os.getpid()))


def test_processes_do_not_collect_the_garbage_of_the_one_that_made_them(tmp_path: Path) -> None:
    """They would tell Ray of actors' handles on its connections, where its next call then hangs."""
    path = tmp_path / "collected"
    gc.disable()
    try:
        Garbage(path)
        runner = runner_of("counting_envs:Counter", **KINDS["process"])
        runner.foreach_env(lambda env: gc.collect())
        own = multiprocessing.get_context("fork").Process(target=gc.collect)  # as users' code may
        own.start()
        own.join()
        assert own.exitcode == 0
        assert not path.exists()
        gc.collect()
        assert path.read_text() == str(os.getpid())
    finally:
        gc.enable()
    runner.stop()


def test_policies_act_for_the_remote_environments_that_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"use": f"{__name__}:Waits", "folder": str(tmp_path)}
    wait = {"remote_worker_envs": True, "remote_env_batch_wait_ms": 0}
    runner = runner_of(env, disable_env_checking=True, **wait)
    monkeypatch.setattr(vector_env, "_elsewhere", lambda settings: Near)  # two actors suffice
    again = runner_of(env, disable_env_checking=True, **wait)
    replies = [runner.sample_fragment(SampleRequest(k, 10)) for k in range(2)]
    for reply in replies:
        assert reply.env_steps == len(reply.batch) == 20
        np.testing.assert_array_equal(reply.batch["obs"][:, 1], reply.batch["t"])
    ahead = np.bincount(replies[0].batch["env_id"])
    assert ahead[0] >= 10  # all of these before the second one's first
    assert replies[0].vector_steps > 10
    again.set_state(runner.get_state())
    states = [one.get_state() for one in (runner, again)]
    for name in ("number", "reset_number"):
        np.testing.assert_array_equal(*(state["episodes"][name] for state in states))
    assert states[0]["due"]["default_policy"]["unfiltered"].tolist() == (
        states[1]["due"]["default_policy"]["unfiltered"].tolist()
    )
    runner.stop()
    again.stop()


class Near(EnvProxy):
    """In this process. Of all calls that are under way one has ended, each time the next one."""

    turns = 0

    def _start(self) -> None:
        self._host = EnvHost(self._make, self._env_timeout_s)

    def begin(self, method: str, *arguments: Any) -> None:
        assert not self.under_way, f"{method} while another call is under way"
        super().begin(method, *arguments)

    def _send(self, method: str, arguments: tuple[Any, ...]) -> None:
        self._answer = self._host.call(method, *arguments)

    def _wait(self) -> None:
        return

    def _receive(self) -> Any:
        return self._answer

    @classmethod
    def ready(cls, envs: list[Any], wait_s: float) -> list[bool]:
        cls.turns += 1
        return [i == cls.turns % len(envs) for i in range(len(envs))]

    def close(self) -> None:
        return


@pytest.mark.parametrize("num_envs", [1, 2, 3, 4])
def test_remote_environments_end_one_call_before_the_next(
    num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a fragment, too, where all may be busy, some of them with a reset."""
    monkeypatch.setattr(vector_env, "_elsewhere", lambda settings: Near)
    wait = {"remote_worker_envs": True, "remote_env_batch_wait_ms": 0}
    runner = runner_of("counting_envs:Counter", num_envs, disable_env_checking=True, **wait)
    for k in range(30):
        batch = runner.sample_fragment(SampleRequest(k, 5)).batch
        assert len(batch) == 5 * num_envs
        np.testing.assert_array_equal(batch["obs"][:, 1], batch["t"])


def test_where_an_environment_cannot_be_started_those_before_it_are_closed() -> None:
    started, closed = list[Any](), list[Any]()

    class Limited(Near):
        def __init__(self, *arguments: Any) -> None:
            if len(started) == 2:
                raise OSError("Too many open files")
            super().__init__(*arguments)
            started.append(self)

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(OSError, match="Too many open files"):
        ProxyMaker(Limited, lambda _: Counter(), "Counter", None).all(3)
    assert closed == started[::-1]


class InterruptAtLine:
    """Raises KeyboardInterrupt, as a signal may, at a line of the code that sends and receives."""

    FILES = (env_process.__file__, connection.__file__)

    def __init__(self, number: int) -> None:
        self._left, self.place = number, ""

    def __enter__(self) -> InterruptAtLine:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        self._left -= event == "line"
        if event == "line" and self._left == 0:
            self.place = f"{frame.f_code.co_name}:{frame.f_lineno}"
            raise KeyboardInterrupt
        return self._trace


def test_an_interrupt_at_any_line_of_a_message_leaves_no_answer_to_another_call() -> None:
    env, places = ProcessEnv(Counter), set[str]()
    env.wait_until_built()
    for number in itertools.count(1):
        env.reset(seed=0)
        interrupt = InterruptAtLine(number)
        with suppress(KeyboardInterrupt), interrupt:
            env.begin("step", 0)
            env.finish()
        if not interrupt.place:
            break
        places.add(interrupt.place.split(":")[0])
        env.begin("reset", number)
        observation, _ = env.finish()
        for t in range(1, 3):
            assert observation[1] == t - 1, interrupt.place
            observation = env.step(t)[0]
    assert places >= {"begin", "_send", "_send_bytes", "finish", "_wait", "_receive", "_recv_bytes"}
    env.close()
    assert not multiprocessing.active_children()


def test_an_interrupted_message_ends_the_episode() -> None:
    """The environment may have made the step, or not."""
    env = ProcessEnv(Counter)
    env.wait_until_built()
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt), InterruptAtLine(6) as interrupt:
        env.apply(id)
    for call in (partial(env.step, 0), partial(env.apply, id)):
        with pytest.raises(EnvFailure, match="was interrupted"):
            call()
    assert env.reset(seed=0)[0][1] == 0, interrupt.place
    env.close()


def test_a_function_that_cannot_be_pickled_does_not_end_the_episode() -> None:
    env = ProcessEnv(Counter)
    env.wait_until_built()
    env.reset(seed=0)
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        env.apply(lambda _: lock.locked())
    assert env.step(0)[0][1] == 1
    env.close()


def test_environments_outlive_the_thread_that_made_them() -> None:
    make = ProxyMaker(ProcessEnv, lambda _: Counter(), "Counter", None)
    with ThreadPoolExecutor() as thread:
        env = thread.submit(make, 0).result()
    env.reset(seed=0)
    assert env.step(0)[0][1] == 1
    env.close()


class Interrupts(Counter):
    """Ctrl-C comes in its 20th step, which takes a while; once for all of them."""

    def __init__(self, process_id: int, folder: str) -> None:
        super().__init__()
        self._process_id, self._sign, self._made = process_id, Path(folder) / "interrupted", 0

    def step(self, action: Any) -> Any:
        self._made += 1
        with suppress(FileExistsError):
            if self._made == 20:
                self._sign.touch(exist_ok=False)
                os.kill(self._process_id, signal.SIGINT)
                time.sleep(0.5)
        return super().step(action)


InterruptedAgents = make_multi_agent(Interrupts)


@pytest.mark.parametrize(
    ("kind", "several", "saved"),
    [
        *itertools.product([{}, KINDS["process"]], [False, True], [False, True]),
        pytest.param(KINDS["actor"], True, False, marks=pytest.mark.faults),
        pytest.param(KINDS["actor"], False, True, marks=pytest.mark.faults),
    ],
)
def test_after_an_interrupt_all_sub_environments_begin_afresh(
    kind: dict[str, Any], several: bool, saved: bool, tmp_path: Path
) -> None:
    use = f"{__name__}:{'InterruptedAgents' if several else 'Interrupts'}"
    env = {"use": use, "process_id": os.getpid(), "folder": str(tmp_path)}
    runner = runner_of(env, several=several, disable_env_checking=True, **kind)
    before = runner.sample_fragment(SampleRequest(0, 10))
    with pytest.raises(KeyboardInterrupt):
        runner.sample_fragment(SampleRequest(1, 20))
    if saved:
        state, weights = runner.get_state(), runner.get_weights()
        runner.stop()
        runner = runner_of(env, several=several, disable_env_checking=True, **kind)
        runner.set_weights(weights)
        runner.set_state(state)
    ids = {episode.episode_id for episode in before.episodes}
    for fragment in range(2, 4):
        reply = runner.sample_fragment(SampleRequest(fragment, 9))
        assert reply.env_steps == 18
        for rows in reply.batches.policy_batches.values():
            np.testing.assert_array_equal(rows["obs"][:, 1], rows["t"])
        assert all(2 <= episode.length <= 4 for episode in reply.episodes)
        found = {episode.episode_id for episode in reply.episodes}
        assert len(found) == len(reply.episodes)
        assert not found & ids
        ids |= found
    runner.stop()

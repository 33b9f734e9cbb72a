"""All vectorisations and autoreset modes give the same transitions, in closed form."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting_envs import (
    Observes,
    ObservesBytes,
    ObservesDoubles,
    ObservesNested,
    ObservesNestedBytes,
    Pays,
)
from gymnasium import spaces
from gymnasium.vector.utils import iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun import PPOConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data.column_data import pick
from rlrun.envs.env import EnvContext
from rlrun.envs.episode_vector_env import replay_actions
from rlrun.envs.errors import EnvError, EnvFailure
from rlrun.envs.serial_vector_env import SerialVectorEnv
from rlrun.envs.vector_env import make_vector_env

NUM_ENVS = 3


def make(use: str, num_envs: int = NUM_ENVS, vectorize: str = "auto", **kwargs: Any) -> Any:
    spec = EnvSpec(use=use, **kwargs)
    return make_vector_env(spec, num_envs, EnvRunnersConfig(gym_env_vectorize_mode=vectorize))


def seed_of(env_index: int, episode: int) -> int:
    return 100 * env_index + 7 * episode


def transitions(env: Any, steps: int, actions: Any = None) -> list[list[tuple[Any, ...]]]:
    """For each environment its transitions (obs, action, reward, terminated, truncated, new_obs,
    info).
    """
    space = env.single_observation_space
    batched = gymnasium.vector.utils.batch_space(space, env.num_envs)

    def rows(batch: Any) -> list[Any]:
        copied = pick(batch, np.arange(env.num_envs))
        return [_plain(row) for row in iterate(batched, copied)]

    found: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
    episodes = [0] * env.num_envs
    now = rows(env.reset([seed_of(env_index, 0) for env_index in range(env.num_envs)]))
    env_index_steps = [0] * env.num_envs
    while min(env_index_steps) < steps:
        chosen = np.array([s % 3 for s in env_index_steps])
        obs, rewards, terminateds, truncateds, infos = env.step(
            chosen if actions is None else actions(chosen)
        )
        after = rows(obs)
        for env_index in range(env.num_envs):
            if env.valid is not None and not env.valid[env_index]:
                continue
            info = None if infos is None else infos.by_env.get(env_index)
            found[env_index].append(
                (
                    now[env_index],
                    int(chosen[env_index]),
                    float(rewards[env_index]),
                    bool(terminateds[env_index]),
                    bool(truncateds[env_index]),
                    after[env_index],
                    None if info is None else {k: int(v) for k, v in info.items()},
                )
            )
            env_index_steps[env_index] += 1
        now = after
        done = terminateds | truncateds
        if done.any():
            for env_index in np.flatnonzero(done):
                episodes[env_index] += 1
            seeds = [seed_of(env_index, episodes[env_index]) for env_index in range(env.num_envs)]
            fresh = env.reset_envs(done.copy(), seeds)
            if fresh is not None:
                reset = rows(fresh)
                now = [reset[i] if done[i] else now[i] for i in range(env.num_envs)]
    env.close()
    return [env_index[:steps] for env_index in found]


def _plain(row: Any) -> Any:
    if isinstance(row, dict):
        return {key: _plain(part) for key, part in row.items()}
    if isinstance(row, tuple):
        return tuple(_plain(part) for part in row)
    return np.asarray(row).tolist()


def by_hand(steps: int, *, seeded: bool = True) -> list[list[tuple[Any, ...]]]:
    """The transitions of `Counter`, from its description."""
    num_envs = []
    for env_index in range(NUM_ENVS):
        rows: list[tuple[Any, ...]] = []
        episode = 0
        while len(rows) < steps:
            seed = seed_of(env_index, episode) if seeded else seed_of(env_index, 0) + episode
            length = 2 + seed % 3
            for step in range(1, length + 1):
                action, done = len(rows) % 3, step == length
                rows.append(
                    (
                        [seed % 1000, step - 1],
                        action,
                        step + 10.0 * action,
                        done and seed % 2 == 0,
                        done and seed % 2 == 1,
                        [seed % 1000, step],
                        {"last": step} if done else None,
                    )
                )
            episode += 1
        num_envs.append(rows[:steps])
    return num_envs


@pytest.mark.parametrize(
    ("use", "kwargs"),
    [
        ("counting_envs:Counter", {}),
        *(
            ("counting_envs:gymnasium_sync", {"mode": mode})
            for mode in ("DISABLED", "SAME_STEP", "NEXT_STEP")
        ),
    ],
)
def test_every_autoreset_mode_gives_the_transitions_written_by_hand(use: str, kwargs: Any) -> None:
    env = make(use, **kwargs)
    assert env.episode_seeds
    assert env.every_step_counts
    assert transitions(env, 40) == by_hand(40)


@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP", "NEXT_STEP"])
def test_processes_give_the_same(mode: str) -> None:
    env = make("counting_envs:gymnasium_async", mode=mode)
    assert transitions(env, 12) == by_hand(12)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_an_env_that_seeds_itself_gives_the_same_transitions_of_its_own_episodes(mode: str) -> None:
    env = make("counting_envs:autonomous", mode=mode)
    assert not env.episode_seeds
    assert env.every_step_counts == (mode == "SAME_STEP")
    found = transitions(env, 30)
    expected = by_hand_consecutive(30)
    assert found == expected


def by_hand_consecutive(steps: int) -> list[list[tuple[Any, ...]]]:
    """One int seeds all environments: environment i starts with it plus i, and each episode adds
    one.
    """
    num_envs = []
    for env_index in range(NUM_ENVS):
        rows: list[tuple[Any, ...]] = []
        seed = env_index
        while len(rows) < steps:
            length = 2 + seed % 3
            for step in range(1, length + 1):
                action, done = len(rows) % 3, step == length
                flags = (done and seed % 2 == 0, done and seed % 2 == 1)
                info = {"last": step} if done else None
                before, after = [seed, step - 1], [seed, step]
                rows.append((before, action, step + 10.0 * action, *flags, after, info))
            seed += 1
        num_envs.append(rows[:steps])
    return num_envs


@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP", "NEXT_STEP"])
def test_nested_spaces_agree_in_every_mode(mode: str) -> None:
    def nested(chosen: Any) -> Any:
        return {"a": chosen, "b": np.zeros((len(chosen), 1), np.float32)}

    serial = transitions(make("counting_envs:NestedCounter"), 25, nested)
    native = make("counting_envs:gymnasium_sync", mode=mode, nested=True)
    assert transitions(native, 25, nested) == serial
    expected = by_hand(25)
    for found, plain in zip(serial, expected, strict=True):
        assert [row[0]["pair"] for row in found] == [row[0] for row in plain]
        assert [row[2:5] for row in found] == [row[2:5] for row in plain]


def test_own_processes_give_the_same() -> None:
    assert transitions(make("counting_envs:Counter", vectorize="async"), 12) == by_hand(12)
    assert not multiprocessing.active_children()


@settings(max_examples=20)
@given(st.lists(st.integers(0, 10**6), min_size=NUM_ENVS, max_size=NUM_ENVS), st.integers(1, 60))
def test_env_steps_are_the_lengths_of_finished_and_running_episodes(
    seeds: list[int], steps: int
) -> None:
    env = make("counting_envs:autonomous", mode="NEXT_STEP")
    env.reset(seeds)
    counted, running, finished = 0, np.zeros(NUM_ENVS, int), 0
    for _ in range(steps):
        obs, _, terminateds, truncateds, _ = env.step(np.zeros(NUM_ENVS, int))
        valid = np.ones(NUM_ENVS, bool) if env.valid is None else env.valid
        counted += int(valid.sum())
        running += valid
        done = terminateds | truncateds
        assert (obs[:, 1][valid] == running[valid]).all()  # the env's own count of its steps
        finished += int(running[done].sum())
        running[done] = 0
    assert counted == finished + running.sum()


def test_shared_memory_decides_whether_async_honours_a_mask() -> None:
    env = make("counting_envs:gymnasium_async", mode="NEXT_STEP", shared_memory=False)
    assert not env.every_step_counts
    env.close()


def test_cartpoles_own_vectorisation_has_no_junk_rows_and_its_time_limit() -> None:
    spec = EnvSpec(use="CartPole-v1", max_episode_steps=7)
    own = EnvRunnersConfig(gym_env_vectorize_mode="vector_entry_point")
    env = make_vector_env(spec, 4, own)
    now = env.reset([1, 2, 3, 4]).copy()
    lengths, running = [], np.zeros(4, int)
    for _ in range(50):
        obs, rewards, terminateds, truncateds, _ = env.step(np.ones(4, int))
        valid = np.ones(4, bool) if env.valid is None else env.valid
        assert (rewards[valid] == 1).all()
        # A cart moves by tau times its speed; a row across a reset would not.
        np.testing.assert_allclose(
            (now[:, 0] + 0.02 * now[:, 1])[valid], obs[:, 0][valid], atol=1e-6
        )
        running += valid
        done = terminateds | truncateds
        lengths += running[done].tolist()
        running[done] = 0
        assert env.reset_envs(done, [0] * 4) is None
        now = obs.copy()
    assert set(lengths) == {7}


def test_an_array_env_goes_on_exactly_from_its_state() -> None:
    own = EnvRunnersConfig(gym_env_vectorize_mode="vector_entry_point")
    first, second = (make_vector_env(EnvSpec(use="CartPole-v1"), 3, own) for _ in range(2))
    first.reset([5, 6, 7])
    second.reset([0, 0, 0])
    rng = np.random.default_rng(0)
    for step in range(120):
        if step == 40:
            state = first.get_state()
            assert state is not None
            second.set_state(state)
        actions = rng.integers(0, 2, 3)
        expected = first.step(actions)
        if step >= 40:
            for left, right in zip(expected[:4], second.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(left, right)
            np.testing.assert_array_equal(first.valid, second.valid)  # type: ignore[arg-type]


def test_the_time_limit_of_an_id_truncates() -> None:
    env = make("CartPole-v1", max_episode_steps=3)
    env.reset([0] * NUM_ENVS)
    flags = [env.step(np.arange(NUM_ENVS) % 2)[2:4] for _ in range(3)]
    assert not flags[-1][0].any()
    assert flags[-1][1].all()


def test_actions_are_rows_that_an_env_cannot_write_to() -> None:
    spec = EnvSpec(use="counting_envs:ContinuousCounter")
    env = make_vector_env(spec, 2, EnvRunnersConfig(disable_env_checking=True))
    env.reset([0, 1])
    with pytest.raises(EnvError, match="read-only"):
        env.step(np.ones((2, 2), np.float32))


def test_an_exception_in_a_step_names_env_index_and_step_and_shows_only_the_users_code() -> None:
    env = make("counting_envs:Counter", fail_at=3)
    env.reset([0, 1, 2])  # lengths 2, 3 and 4
    zeros = np.zeros(NUM_ENVS, int)
    env.step(zeros)
    env.step(zeros)
    env.reset_envs(np.array([True, False, False]), [0, 0, 0])
    env.step(zeros)
    with pytest.raises(EnvError) as caught:
        env.step(zeros)
    error = caught.value
    assert (error.phase, error.env_index, error.env_step) == ("step", 1, 3)
    assert "counting_envs.py" in error.user_traceback
    assert "rlrun/sampling" not in error.user_traceback
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_an_exception_in_a_process_arrives_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    env = make("counting_envs:Counter", num_envs=2, vectorize="async", fail_at=1)
    env.reset([0, 1])
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match="ValueError: the counter stopped") as caught:
        env.step(np.zeros(2, int))
    assert (caught.value.phase, caught.value.env_step) == ("step", 1)
    assert "gymnasium" not in caught.value.user_traceback
    env.close()
    assert capfd.readouterr().err == ""
    assert not multiprocessing.active_children()


def test_what_a_process_cannot_send_is_an_error_of_the_environment() -> None:
    env = make("counting_envs:Observes", num_envs=1, vectorize="async", kwargs={"value": lambda: 0})
    env.reset([2])
    env.step(np.zeros(1, int))
    with pytest.raises(EnvError, match=r"pickle|local object") as caught:
        env.step(np.zeros(1, int))
    assert (caught.value.phase, caught.value.env_step) == ("step", 1)
    env.close()


class CannotSayError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "reason"),
    [(CannotSayError(), "CannotSayError"), (ValueError("x" * 10**6), "ValueError: xx")],
)
def test_an_exception_of_any_kind_can_be_told(error: Exception, reason: str) -> None:
    failure = EnvFailure.from_exception(error)
    assert failure.reason.startswith(reason)
    assert max(map(len, (failure.reason, failure.user_traceback))) < 20_000


def test_a_process_that_dies_is_named_with_its_exit_code() -> None:
    spec = EnvSpec(use="counting_envs:DiesInStep")
    config = EnvRunnersConfig(gym_env_vectorize_mode="async", disable_env_checking=True)
    env = make_vector_env(spec, 2, config)
    env.reset([0, 1])
    with pytest.raises(EnvError, match="process ended, with exit code 3") as caught:
        env.step(np.zeros(2, int))
    assert caught.value.phase == "step"
    env.close()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Observes, np.array([0, np.nan], np.float32), r"NaN at index \(1,\)"),
        (Observes, np.array([-np.inf, 0], np.float32), r"an infinity at index \(0,\)"),
        (Observes, [0.0, 1e39], "an infinity"),  # beyond float32
        (ObservesDoubles, np.array([0.0, -1e39]), r"-1e\+39, which is infinite in float32"),
        (Observes, np.float32(3), r"shape \(\), but the space has \(2,\)"),
        (Observes, np.zeros(1, np.float32), r"shape \(1,\)"),
        (Observes, np.zeros((1, 2), np.float32), r"shape \(1, 2\)"),
        (Observes, np.array([0, 1j]), "dtype complex128"),
        (Observes, "ab", "shape"),
        (ObservesBytes, np.array([3, 200]), r"index \(1,\) is 200, which int8 cannot hold"),
        (ObservesBytes, np.array([3, -1]).astype(np.uint8), "is 255, which int8 cannot hold"),
        (ObservesNested, {"n": 1}, r"must be a dict with the keys \['n', 'x'\]"),
        (ObservesNested, {"x": np.float32(3), "n": 1}, r"\['x'\] has shape \(\)"),
        (ObservesNested, {"x": np.zeros(2), "n": "a"}, r"\['n'\] 'a' is not in Discrete"),
        (ObservesNested, None, "must be a dict"),
        (ObservesNestedBytes, {"y": (np.array([3, 200]),)}, r"\['y'\]\[0\] at index \(1,\) is 200"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered in dot:RuntimeWarning")
def test_an_observation_that_is_none_of_its_space_stops_the_run(
    kind: Any, value: Any, message: str
) -> None:
    """Also where numpy would broadcast it, cut it off, or let it pass as a number."""
    envs = [kind(value), kind(value)]
    env = SerialVectorEnv(envs, "Mine-v0")
    env.reset([2, 2])
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=message) as caught:
        env.step(np.zeros(2, int))
    assert (caught.value.phase, caught.value.env_step) == ("observation", 1)
    assert caught.value.env_index == 0


@pytest.mark.parametrize("value", ["1", b"1", np.str_("1"), None])
def test_a_reward_that_is_no_number_stops_the_run(value: Any) -> None:
    """Also where numpy would read it as one."""
    env = SerialVectorEnv([Pays(1), Pays(value)], "Mine-v0")
    env.reset([2, 2])
    assert env.step(np.zeros(2, int))[1].tolist() == [1, 1]
    with pytest.raises(EnvError, match="must be real number, not ") as caught:
        env.step(np.zeros(2, int))
    place = caught.value.phase, caught.value.env_index, caught.value.env_step
    assert place == ("step", 1, 1)


def test_rewards_of_a_vector_that_are_no_numbers_stop_the_run() -> None:
    env = make("counting_envs:PaysTexts")
    env.reset([2] * NUM_ENVS)
    with pytest.raises(EnvError, match=r"dtype.*float64") as caught:
        env.step(np.zeros(NUM_ENVS, int))
    assert (caught.value.phase, caught.value.env_step) == ("step", 0)


@pytest.mark.parametrize("value", [True, np.True_, 3, np.int8(3), np.float32(0.1), np.array(2.5)])
def test_all_kinds_of_numbers_are_rewards(value: Any) -> None:
    env = SerialVectorEnv([Pays(value)], "Mine-v0")
    env.reset([2])
    env.step(np.zeros(1, int))
    assert env.step(np.zeros(1, int))[1].tolist() == [float(value)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_numbers(dtype: Any) -> None:
    """Also where the sum of their squares is infinite."""
    value = np.full(2, min(np.finfo(dtype).max, np.finfo(np.float32).max), dtype)
    env_class = type("Large", (Observes,), {})
    env_class.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
    env = SerialVectorEnv([env_class(value)], "Mine-v0")
    env.reset([2])
    env.step(np.zeros(1, int))
    observations, *_ = env.step(np.zeros(1, int))
    np.testing.assert_array_equal(observations, [value])


def test_a_vector_env_without_a_mode_is_refused_by_name() -> None:
    with pytest.raises(EnvError, match="autoreset_mode") as caught:
        make("counting_envs:without_mode")
    assert "counting_envs:without_mode" in str(caught.value)


def test_a_vector_env_that_resets_others_than_the_mask_says_is_refused() -> None:
    env = make("counting_envs:autonomous", 2, mode="DISABLED")
    env.reset([2, 3])
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match="that does not name it") as caught:
        env.reset_envs(np.array([True, False]), [4, 5])
    assert caught.value.env_index == 1


def test_a_vector_env_of_another_size_is_refused() -> None:
    with pytest.raises(EnvError, match="num_envs_per_env_runner=3"):
        make("counting_envs:three_sub_envs", num_envs=2)


def test_an_id_without_vector_entry_point_says_so() -> None:
    with pytest.raises(EnvError, match="vector entry point") as caught:
        make("MountainCar-v0", vectorize="vector_entry_point")
    assert caught.value.phase == "constructor"


def test_sub_environments_know_their_place() -> None:
    spec = EnvSpec(use="counting_envs:told_its_place", size=4)
    context = EnvContext(spec.kwargs, worker_index=2, num_workers=5)
    env: Any = make_vector_env(spec, 2, EnvRunnersConfig(), context)
    assert [env_index.place for env_index in env.envs] == [(2, 0, 5, True), (2, 1, 5, True)]
    assert [env_index.size for env_index in env.envs] == [4, 4]


HANGS = """
import multiprocessing
import time
import gymnasium as gym
from rlrun.envs.env_process import ProcessEnv

class Hangs(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        print("resets", flush=True)
        time.sleep(600)

env = ProcessEnv(Hangs)
env.wait_until_built()
print(multiprocessing.active_children()[0].pid, flush=True)
env.reset(seed=1)
"""


@pytest.mark.faults
def test_an_environment_that_hangs_ends_with_the_process_that_is_killed() -> None:
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "resets\n"
        parent.kill()
    process = Path(f"/proc/{child}/cmdline")
    end = time.monotonic() + 20
    while process.exists() and process.read_bytes():  # a process that nobody waits for has none
        assert time.monotonic() < end, "the environment's process has outlived its parent"
        time.sleep(0.05)


def test_a_process_ends_at_once_that_leaves_an_environment_unclosed() -> None:
    script = HANGS.replace("env.reset(seed=1)", "raise SystemExit(3)")
    done = subprocess.run([sys.executable, "-c", script], timeout=100, check=False)
    assert done.returncode == 3


class OneWay(gymnasium.Env[Any, Any]):
    """Only one action is legal: the seed and the steps so far, added up. Observes both."""

    observation_space = spaces.Box(0, 100, (2,))
    action_space = spaces.Discrete(100)

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seen = np.array([seed or 0, 0], np.float32)
        return self.seen.copy(), {}

    def step(self, action: Any) -> Any:
        assert action == self.seen.sum() or not self.strict, "an illegal action"
        self.seen[1] += 1
        return self.seen.copy(), 0.0, False, False, {}


class SecondIsMissing(OneWay):
    def __init__(self, context: EnvContext) -> None:
        super().__init__(strict=False)
        if context.vector_index == 1:
            raise ValueError("the second one is missing")


def test_of_environments_that_cannot_all_be_built_none_is_left() -> None:
    with pytest.raises(EnvError, match="the second one is missing"):
        make(f"{__name__}:SecondIsMissing", 3, "async")
    assert not multiprocessing.active_children()


def vector_of_one_way(num_envs: int) -> Any:
    mode = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    return gymnasium.vector.SyncVectorEnv([lambda: OneWay(strict=False)] * num_envs, **mode)


@pytest.mark.parametrize("use", ["OneWay", "vector_of_one_way"])
def test_replayed_sub_environments_get_no_action_but_their_own(use: str) -> None:
    env = EnvRunnersConfig(disable_env_checking=True)
    envs = make_vector_env(EnvSpec(use=f"{__name__}:{use}"), 3, env)
    for first, lives, steps in ([5, 6], [], 2), ([5, 5], [1], 1), ([5, 5], [1, 2], 0):
        recorded = [5, 7, 8], [np.array(first), None, np.array([8])], [lives, [], []]
        arrived, failed = replay_actions(envs, lambda batch: batch, *recorded)
        assert not failed.any()
        assert np.asarray(arrived).tolist() == [[5, steps], [7, 0], [8, 1]]


def test_a_vector_whose_sub_environments_are_to_be_built_again_is_refused_with_the_key() -> None:
    config = PPOConfig().environment(vector_of_one_way)
    config = config.fault_tolerance(restart_failed_sub_environments=True)
    with pytest.raises(ConfigError, match="restart_failed_sub_environments: sub-environments of a"):
        config.build()


class Misshapen(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """One of the arrays of a step has another shape."""

    def __init__(self, num_envs: int, name: str) -> None:
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.num_envs, self.name = num_envs, name
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        per_env = np.zeros(self.num_envs)
        answer = {"observations": np.zeros((self.num_envs, 2), np.float32)}
        answer |= dict.fromkeys(("rewards", "terminateds", "truncateds"), per_env)
        answer[self.name] = answer[self.name][..., :1]
        return *answer.values(), {}


@pytest.mark.parametrize("name", ["observations", "rewards", "terminateds", "truncateds"])
def test_arrays_of_a_vector_that_numpy_would_broadcast_are_refused(name: str) -> None:
    envs = make(f"{__name__}:Misshapen", name=name)
    envs.reset(range(NUM_ENVS))
    with pytest.raises(EnvError, match=rf"step\(\) returned {name} of shape"):
        envs.step(np.zeros(NUM_ENVS, np.int64))

"""`load_transitions`: equal to what was sampled, and files that do not fit."""

import re
from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from tiny import build

from rlrun import load_transitions, rollout
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.config.problems import InputError
from rlrun.data import columns as col
from rlrun.data.nested import leaf_spaces

NPY = (
    b"\x93NUMPY\x01\x00F\x00{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}".ljust(80)
    + b"\n"
)
SPACES = {
    "numbers": (Box(-3, 3, (4,), np.float32), Discrete(3, start=2)),
    "stretched": (
        Box(-9, 9, (2, 2), np.float64),
        Box(np.float32(-2.0), np.array([0.0, 6.0], np.float32)),
    ),
    "unbounded": (Discrete(5, start=-1), Box(-np.inf, np.inf, (2,), np.float32)),
    "without a choice": (Discrete(2), Box(np.float32([-1, 3]), np.float32([1, 3]))),
    "whole": (MultiBinary(3), Box(-2, 3, (2,), np.int32)),
    "images": (Box(0, 255, (9, 9, 1), np.uint8), MultiDiscrete([2, 3], start=[1, 0])),
    "nested": (
        Dict({"b": Discrete(3), "a": Tuple((Box(-1, 1, (2,)), Box(0, 5, (1,))))}),
        Dict({"turn": Discrete(2), "push": Box(0.0, 4.0, (2,))}),
    ),
    "nested with an image": (
        Tuple((Box(0, 255, (9, 9, 1), np.uint8), Discrete(2))),
        Tuple((MultiBinary(2), Discrete(2))),
    ),
}


class Drawn(gym.Env):
    """Observations and rewards that are drawn; episodes of three and four steps."""

    def __init__(self, kind="numbers"):
        self.observation_space, self.action_space = SPACES[kind]
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left, self.episodes = 3 + self.episodes % 2, self.episodes + 1
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        ended = not self.left
        reward = float(self.np_random.normal(scale=3.0))
        return self.observation_space.sample(), reward, ended and self.episodes % 2 == 0, ended, {}


def drawn(kind, **sections):
    config = PPOConfig().environment(Drawn, kind=kind)
    config = config.training(train_batch_size=32, minibatch_size=8).debugging(seed=3)
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=1)
    for name, values in sections.items():
        config = getattr(config, name)(**values)
    return config


def leaves(name, space, columns):
    """The columns of a space, as a file has them."""
    paths = ["/".join((name, *map(str, path))) for path, _ in leaf_spaces(space)]
    return dict(zip(paths, columns, strict=True))


def file_of(tmp_path, **columns):
    path = tmp_path / "episodes.npz"
    np.savez(path, **columns)
    return path


@pytest.fixture
def saved(tmp_path):
    """Columns of two transitions of CartPole."""
    numbers = np.zeros((2, 4), np.float32)
    ends = {"terminated": np.array([False, True]), "truncated": np.zeros(2, bool)}
    others = {"reward": np.ones(2), "episode": np.zeros(2, int)}
    return {"obs": numbers, "next_obs": numbers, "action": np.array([0, 1]), **ends, **others}


@pytest.mark.parametrize("kind", SPACES)
def test_saved_transitions_are_what_was_sampled(built, tmp_path, kind):
    algorithm = built(drawn(kind, connectors={"clip_rewards": True}))
    batch = algorithm.sample()
    space, action_space = SPACES[kind]
    connectors = algorithm.policies.connectors["default_policy"]
    taken = connectors.actions(batch[col.ACTIONS])  # as the environment got them
    path = file_of(
        tmp_path,
        **leaves("obs", space, raw(space, 32)),
        **leaves("next_obs", space, raw(space, 32)),
        **leaves("action", action_space, list(flat(taken))),
        reward=np.linspace(-3, 3, 32),
        terminated=batch[col.TERMINATEDS],
        truncated=batch[col.TRUNCATEDS],
        episode=np.cumsum(np.append(0, (batch[col.TERMINATEDS] | batch[col.TRUNCATEDS])[:-1])),
    )
    loaded = load_transitions(algorithm, path)
    for name in (col.OBS, col.NEXT_OBS, col.ACTIONS, col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS):
        assert loaded[name].dtype == batch[name].dtype, name
        assert loaded[name].shape == batch[name].shape, name
    np.testing.assert_array_equal(loaded[col.T], batch[col.T])
    bounded = np.clip(batch[col.ACTIONS], -1, 1) if kind == "stretched" else batch[col.ACTIONS]
    again = connectors.actions(loaded[col.ACTIONS])
    for one, other in zip(flat(again), flat(taken), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert np.isfinite(loaded[col.ACTIONS]).all()
    if kind not in ("nested", "nested with an image", "without a choice"):
        np.testing.assert_allclose(loaded[col.ACTIONS], bounded, atol=1e-5)
    assert set(loaded[col.REWARDS]) == {-1.0, 1.0}


def raw(space, rows):
    """Drawn observations: the rows of each leaf."""
    for _, leaf in leaf_spaces(space):
        leaf.seed(1)
        yield np.stack([leaf.sample() for _ in range(rows)])


def flat(actions):
    """The leaves of the environment's actions, in the order of their keys."""
    if isinstance(actions, dict):
        for key in sorted(actions):
            yield from flat(actions[key])
    elif isinstance(actions, tuple):
        for part in actions:
            yield from flat(part)
    else:
        yield actions


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_rollout_fills_a_buffer_as_sampling_would(built, tmp_path, name):
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    algorithm = built(build, name, env)
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    path = tmp_path / "episodes.npz"
    rollout(tmp_path / "checkpoint", episodes=3, save=path)
    batch = load_transitions(algorithm, path)
    ends = batch[col.TERMINATEDS] | batch[col.TRUNCATEDS]
    assert ends.sum() == 3
    inside = ~ends[:-1]
    np.testing.assert_array_equal(batch[col.NEXT_OBS][:-1][inside], batch[col.OBS][1:][inside])
    if name == "SAC":
        with np.load(path) as file:
            np.testing.assert_allclose(2.0 * batch[col.ACTIONS], file["action"], atol=1e-5)
    before = len(algorithm.replay.buffers["default_policy"])
    algorithm.replay.buffer.add(batch)
    assert len(algorithm.replay.buffers["default_policy"]) > before


def test_agents_have_their_own_transitions(built, tmp_path, saved):
    columns = {f"{agent}/{name}": x for agent in ("a", "b") for name, x in saved.items()}
    columns["b/reward"], columns["b/t"] = np.array([5.0, 6.0]), np.array([2, 4])
    path = file_of(tmp_path, **columns)
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    of_b = load_transitions(algorithm, path, agent="b")
    assert of_b[col.REWARDS].tolist() == [5.0, 6.0]
    assert of_b[col.T].tolist() == [2, 4]
    with pytest.raises(InputError, match=r"reward: missing; it holds a/action, .*, b/truncated$"):
        load_transitions(algorithm, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((2, 3), np.float32)}, "obs: float32 of shape (2, 3), not numbers of"),
        ({"obs": np.zeros((3, 4))}, "obs: float64 of shape (3, 4), not numbers of shape (2, 4)"),
        ({"next_obs": np.full((2, 4), np.nan)}, "next_obs: row 0 has a number that is not finite"),
        ({"obs": np.full((2, 4), 1e300)}, "obs: row 0 has a number that is not finite in float32"),
        ({"reward": np.array([1.0, np.inf])}, "reward: row 1 has a number that is not finite"),
        ({"action": np.array([0, 2])}, "action: values from 0 to 2 do not fit Discrete(2)"),
        ({"action": np.array([0, 0.5])}, "action: values from 0 to 0.5 do not fit Discrete(2)"),
        ({"action": np.array(["left", "right"])}, "action: <U5 of shape (2,), not numbers"),
        ({"terminated": np.array([0, 7])}, "terminated: row 1 has 7, not 0 or 1"),
        ({"truncated": np.array([0.5, 1])}, "truncated: row 0 has 0.5, not 0 or 1"),
        ({"episode": np.array([0, 0.7])}, "episode: row 1 has 0.7, not a whole number of 64 bits"),
        (
            {"episode": np.array([0, 1e30])},
            "episode: row 1 has 1e+30, not a whole number of 64 bits",
        ),
        ({"t": np.array([0.5, 1])}, "t: row 0 has 0.5, not a whole number of 64 bits"),
        ({"truncated": None}, "truncated: missing"),
        (
            {"obs": None},
            "obs: missing; it holds action, episode, next_obs, reward, terminated, truncated",
        ),
        ({"reward": np.empty(0)}, "there are no transitions in it"),
        ({"reward": None}, "reward: missing"),
    ],
)
def test_what_does_not_fit_is_named(built, tmp_path, saved, change, message):
    columns = {name: x for name, x in {**saved, **change}.items() if x is not None}
    path = file_of(tmp_path, **columns)
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
        load_transitions(algorithm, path)


def test_a_policy_that_is_not_there_is_named(built, tmp_path, saved):
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    with pytest.raises(InputError, match="there is no policy 'red'; choose from default_policy"):
        load_transitions(algorithm, file_of(tmp_path, **saved), policy_id="red")


def test_binary_observations_are_0_or_1(built, tmp_path):
    algorithm = built(drawn("whole"))
    obs, reward = np.array([[0, 1, 2]]), np.ones(1)
    columns = {"obs": obs, "next_obs": obs, "action": np.zeros((1, 2), int), "reward": reward}
    ends = {"terminated": np.ones(1, bool), "truncated": np.zeros(1, bool)}
    path = file_of(tmp_path, **columns, **ends, episode=np.zeros(1, int))
    with pytest.raises(InputError, match="obs: values from 0 to 2 do not fit MultiBinary"):
        load_transitions(algorithm, path)


def test_infinite_observations_are_kept_and_actions_beyond_the_bounds_refused(
    built, tmp_path, saved
):
    obs = np.full((2, 4), np.inf, np.float32)
    path = file_of(tmp_path, **{**saved, "next_obs": obs})
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    assert load_transitions(algorithm, path)[col.NEXT_OBS].tolist() == obs.tolist()
    numbers = np.zeros((2, 3), np.float32)
    pendulum = {"obs": numbers, "next_obs": numbers, "action": np.array([[2.0], [2.1]])}
    path = file_of(tmp_path, **{**saved, **pendulum})
    algorithm = built(build, "SAC", "Pendulum-v1")
    with pytest.raises(InputError, match="action: actions lie beyond the bounds"):
        load_transitions(algorithm, path)


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        (
            {"env_runners": {"observation_filter": "MeanStdFilter"}},
            "env_runners.observation_filter",
        ),
        ({"connectors": {"normalize_rewards": True}}, "connectors.normalize_rewards"),
        (
            {"env_runners": {"add_default_connectors_to_env_to_module_pipeline": False}},
            "a custom connector",
        ),
    ],
)
def test_connectors_that_learn_from_samples_are_refused(built, tmp_path, saved, sections, what):
    algorithm = built(drawn("numbers", **sections))
    with pytest.raises(InputError, match=f"{what} cannot be applied later"):
        load_transitions(algorithm, file_of(tmp_path, **saved))


def test_a_damaged_file_is_no_file_of_transitions(built, tmp_path, saved):
    path = tmp_path / "episodes.npz"
    np.savez_compressed(path, **{**saved, "obs": np.arange(8.0).reshape(2, 4)})
    whole = path.read_bytes()
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with suppress(InputError):  # what does no harm may pass
            load_transitions(algorithm, path)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04", NPY])
def test_files_that_are_no_saved_transitions(built, tmp_path, content):
    path = tmp_path / "episodes.npz"
    if content is not None:
        path.write_bytes(content)
    algorithm = built(DQNConfig().environment("CartPole-v1"))
    with pytest.raises(
        InputError, match=re.escape(f"{path}: not a file of `rlrun rollout --save`")
    ):
        load_transitions(algorithm, path)

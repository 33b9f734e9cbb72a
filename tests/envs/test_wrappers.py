"""Wrappers that an experiment names, and action masks that an environment puts into its infos."""

import gymnasium
import numpy as np
import pytest
from counting_envs import NestedCounter
from gymnasium import spaces

from rlrun import EnvRunner, RunnerSpec, load_experiment, make_multi_agent
from rlrun.config.problems import ConfigError
from rlrun.config.registry import algorithm_class
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.envs.env_process import EnvHost
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import make_multi_agent_env

STACK = {"use": "FrameStackObservation", "stack_size": 3}


class Masked(gymnasium.Env):
    """Of 4 actions only the one after the last one is allowed; the info says so."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, lose_mask_at=None):
        self.lose_mask_at = lose_mask_at

    def _info(self):
        if self.steps == self.lose_mask_at:
            return {}
        return {"action_mask": np.arange(4) == self.steps % 4}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), self._info()

    def step(self, action):
        assert self.lose_mask_at == 0 or action == self.steps % 4, "a forbidden action"
        self.steps += 1
        over = self.steps == 7
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, 1.0, over, False, {} if over else self._info()


class MaskedGrid(Masked):
    """Actions in a grid, the first choice of each is forbidden."""

    action_space = spaces.MultiDiscrete([[2, 3], [2, 4]])

    def _info(self):
        return {"action_mask": np.int8([0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1])}

    def step(self, action):
        assert action.all(), "a forbidden action"
        return super().step(self.steps % 4)


def runner(env, **settings):
    settings = {"num_envs_per_env_runner": 2, **settings}
    return EnvRunner(RunnerSpec(EnvSpec(use=env), EnvRunnersConfig(**settings)))


def test_wrappers_are_applied_in_their_order():
    limit = {"use": "TimeLimit", "max_episode_steps": 4}
    made = runner("CartPole-v1", env_wrappers=["TimeAwareObservation", STACK, limit])
    assert made.envs.single_observation_space.shape == (3, 5)
    assert made.sample()["truncateds"].sum() == 2 * 200 / 4


def test_lists_of_a_file_are_shapes_for_wrappers_of_gymnasium():
    """`ReshapeObservation` and `ResizeObservation` raise if their shape is a list."""
    made = runner("CartPole-v1", env_wrappers=[{"use": "ReshapeObservation", "shape": [2, 2]}])
    assert made.envs.single_observation_space.shape == (2, 2)


def test_a_wrapper_that_fails_is_named():
    with pytest.raises(EnvError, match="raised by the wrapper FilterObservation"):
        runner("CartPole-v1", env_wrappers=[{"use": "FilterObservation", "filter_keys": ["a"]}])


def test_a_vector_of_environments_cannot_be_wrapped():
    with pytest.raises(EnvError, match="FlattenObservation cannot wrap a SyncVectorEnv"):
        runner("counting_envs:three_sub_envs", env_wrappers=["FlattenObservation"])


@pytest.mark.parametrize("name", ["PPO", "A2C", "PG", "IMPALA", "APPO", "DQN", "SAC"])
def test_every_discrete_algorithm_obeys_masks_in_infos(name):
    replays = name in ("DQN", "SAC")
    sizes = ["num_steps_sampled_before_learning_starts=8", "training_intensity=8"] * replays
    sizes += ["minibatch_size=8"] if replays or name in ("PPO", "APPO") else []
    overrides = [
        *(f"algorithm={name}", f"env={__name__}:Masked", "seed=1", "model.hidden=[4]"),
        *("training.train_batch_size=24", "evaluation.interval=1", "evaluation.episodes=2"),
        *(f"training.{size}" for size in sizes),
    ]
    algorithm = algorithm_class(name)(load_experiment(None, overrides))
    results = [algorithm.train() for _ in range(2)]
    algorithm.stop()
    assert results[-1]["evaluation"]["episode_return_mean"] == 7


def test_a_grid_of_actions_has_the_masks_of_its_components_one_after_the_other():
    assert runner(f"{__name__}:MaskedGrid").sample()["actions"].all()


def test_nested_spaces_come_out_of_other_processes_as_they_are():
    assert (
        EnvHost(NestedCounter).call("build")["observation_space"]
        == NestedCounter().observation_space
    )


@pytest.mark.parametrize("step", [0, 3])
def test_an_info_without_the_mask_that_others_have_is_an_error(step):
    spec = EnvSpec(use=f"{__name__}:Masked", kwargs={"lose_mask_at": step})
    with pytest.raises(EnvError, match="each info must have an action_mask of shape"):
        EnvRunner(RunnerSpec(spec)).sample()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["env_wrappers=[TimeLimt]"], "did you mean TimeLimit"),
        (["env_wrappers=[{use: TimeLimit, max_steps: 3}]"], "did you mean max_episode_steps"),
        (["env_wrappers=[NormalizeReward]"], "set connectors.normalize_rewards: true instead"),
        (["env_wrappers=['os:system']"], "os:system cannot be used here"),
        (
            ["env_wrappers=[TimeAwareObservation]", "gym_env_vectorize_mode=vector_entry_point"],
            "no single environments to wrap",
        ),
    ],
)
def test_wrong_wrappers_are_refused_with_their_place(settings, message):
    overrides = [f"env_runners.{setting}" for setting in settings]
    with pytest.raises(ConfigError, match=rf"env_runners\.env_wrappers.*{message}"):
        load_experiment(None, ["algorithm=PPO", "env=CartPole-v1", *overrides])


class Scaled(gymnasium.wrappers.NormalizeReward):
    """A subclass, whose statistics may be fixed."""

    def __init__(self, fixed=False):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.update_running_mean = not fixed


SeveralScaled = make_multi_agent(Scaled)


def normalized_vector(num_envs):
    vector = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    return gymnasium.wrappers.vector.NormalizeObservation(vector)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Scaled", "statistics of its wrapper NormalizeReward: set connectors.normalize_rewards"),
        ("normalized_vector", "wrapper NormalizeObservation: set env_runners.observation_filter"),
    ],
)
def test_environments_that_keep_statistics_of_their_own_are_refused(name, message):
    with pytest.raises(ConfigError, match=f"env: evaluations and resumed runs .*{message}"):
        EnvRunner(RunnerSpec(EnvSpec(use=f"{__name__}:{name}")))


def test_copies_of_an_environment_that_keeps_statistics_are_refused():
    with pytest.raises(ConfigError, match="statistics of its wrapper NormalizeReward"):
        make_multi_agent_env(EnvSpec(use=f"{__name__}:SeveralScaled", num_agents=2))


def test_environments_with_fixed_statistics_are_not_refused():
    EnvRunner(RunnerSpec(EnvSpec(use=f"{__name__}:Scaled", kwargs={"fixed": True}))).sample()


def test_wrappers_of_evaluation_are_its_own_and_checked():
    base = ["algorithm=PPO", "env=CartPole-v1", "evaluation.interval=1"]
    with pytest.raises(ConfigError, match=r"evaluation\.env_runners\.env_wrappers\[0\].*'Nothing'"):
        load_experiment(None, [*base, "evaluation.env_runners={env_wrappers: [Nothing]}"])
    limit = "evaluation.env_runners={env_wrappers: [{use: TimeLimit, max_episode_steps: 3}]}"
    sizes = ["training.train_batch_size=64", "training.minibatch_size=64"]
    algorithm = algorithm_class("PPO")(load_experiment(None, [*base, limit, *sizes, "seed=1"]))
    result = algorithm.train()
    algorithm.stop()
    assert result["evaluation"]["episode_len_mean"] == 3
    assert result["episode_len_mean"] > 3

"""Policies are loaded from the checkpoint alone: the run's environment need not be there."""

import json
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun import load_policy, rollout
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.config.problems import ConfigError
from rlrun.envs.spaces_only import SpacesOnly, plain_spaces, spaces_of
from rlrun.experiment import rollout as rollouts
from rlrun.experiment.run import run_experiment
from rlrun.replay.replay_buffer import ReplayBuffer

PROJECT = """
import gymnasium
from gymnasium import spaces

from rlrun import Callbacks

class Robot(gymnasium.Env):
    def __init__(self, size=3):
        low = [-float("inf"), -2.5, 0.0, 0.0, 0.0][:size]
        self.observation_space = spaces.Dict({"arm": spaces.Box(low[0], 1.0, (size,)),
                                              "mode": spaces.Discrete(3, start=1)})
        self.action_space = spaces.Box(-300.0, 500.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, True, {}

class Bystander(Callbacks):
    pass

def wrapped(env):
    return env

def same(batch):
    return batch

class Same:
    def __call__(self, batch):
        return batch

class Sink:
    def write(self, result):
        pass
    def close(self):
        pass
"""
FILE = """
algorithm: PPO
env: "robot_project:Robot"
seed: 1
stop: {training_iteration: 1}
env_runners: {observation_filter: MeanStdFilter, env_wrappers: ["robot_project:wrapped"]}
model: {hidden: [4]}
training: {train_batch_size: 16, minibatch_size: 16, num_epochs: 1,
           learner_connectors: ["robot_project:Same"]}
callbacks: ["robot_project:Bystander"]
evaluation: {env: {size: 3}}
report: {sinks: ["robot_project:Sink"]}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run of a project that is not installed on this machine."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "robot_project.py").write_text(PROJECT)
    (folder / "file.yaml").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        run_experiment("file.yaml", run_dir="run", console="quiet")
        yield folder / "run"
        sys.modules.pop("robot_project", None)


@pytest.fixture
def without_project(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "robot_project", None)
    return run


OBSERVATION = {"arm": np.array([0.5, -7.0, 1.0], np.float32), "mode": np.int64(3)}


def test_a_seed_below_0_is_named(run):
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        load_policy(run, seed=-1)


def test_a_policy_acts_without_the_code_of_its_project_as_with_it(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(rollouts, "restored_to_act", rollouts.restored)
        expected = load_policy(run)
    monkeypatch.setitem(sys.modules, "robot_project", None)
    policy = load_policy(run)
    assert policy.observation_space == expected.observation_space
    assert policy.action_space == expected.action_space
    action = policy.compute_single_action(OBSERVATION)
    np.testing.assert_array_equal(action, expected.compute_single_action(OBSERVATION))


@pytest.mark.parametrize("state", [{"spaces": None}, {}])
def test_a_checkpoint_without_spaces_is_loaded_by_its_environment(run, monkeypatch, state):
    checkpoint = read_checkpoint((run / "checkpoints/latest").resolve())
    del checkpoint.state["policies"]["spaces"]
    checkpoint.state["policies"].update(state)
    monkeypatch.setattr(rollouts, "find_checkpoint", lambda path: checkpoint)
    assert load_policy(run).observation_space["arm"].shape == (3,)
    assert "robot_project" in sys.modules


def test_a_rollout_needs_the_environment(without_project):
    with pytest.raises(ConfigError, match="robot_project"):
        rollout(without_project)


def test_a_rollout_in_an_environment_of_other_spaces_says_which_they_are(run):
    with pytest.raises(ConfigError, match=r"env: its observations are .*\(2,\).* but in the check"):
        rollout(run, ["env.size=2", "evaluation.env={size: 2}"])
    with pytest.raises(TypeError, match="a list of KEY=VALUE texts"):
        rollout(run, "env.size=2")


def test_a_policy_is_loaded_without_the_replay_buffer(tmp_path, monkeypatch):
    """Which may be larger than the memory of the machine that the policy acts on."""
    file = tmp_path / "dqn.yaml"
    file.write_text("""
algorithm: DQN
env: CartPole-v1
stop: {training_iteration: 1}
model: {hidden: [4]}
training: {train_batch_size: 8}
replay: {store_in_checkpoints: true}
""")
    run_experiment(file, run_dir=tmp_path / "run", console="quiet")
    buffer = (tmp_path / "run/checkpoints/latest/state.json").read_text().count("replay/buffer")
    assert buffer > 5  # arrays
    monkeypatch.setattr(ReplayBuffer, "set_state", lambda *_: pytest.fail("it was loaded"))
    assert rollout(tmp_path / "run", episodes=1).episodes[0].length > 0
    assert load_policy(tmp_path / "run").compute_single_action(np.zeros(4, np.float32)) in {0, 1}


def test_each_of_several_policies_has_its_own_spaces(tmp_path):
    file = tmp_path / "several.yaml"
    file.write_text("""
algorithm: PPO
env: RockPaperScissors
stop: {training_iteration: 1}
model: {hidden: [4]}
multi_agent:
  policies: {default_policy: , a.1: {spaces_of: player_1}}
  agents: {"*": default_policy}
training: {train_batch_size: 20, minibatch_size: 20, num_epochs: 1}
""")
    run_experiment(file, run_dir=tmp_path / "run", console="quiet")
    for policy_id in ("default_policy", "a.1"):
        assert load_policy(tmp_path / "run", policy_id).compute_single_action(3) in range(3)


SPACES = {
    "box": (spaces.Box(np.float32([-np.inf, 0.1]), np.float32([np.inf, 0.3])), spaces.Discrete(2)),
    "nested": (
        spaces.Dict([("z", spaces.MultiBinary(3)), ("a", spaces.Tuple([spaces.Discrete(2)]))]),
        spaces.MultiDiscrete([2, 3]),
    ),
}


def test_spaces_are_the_same_after_they_were_plain():
    again = spaces_of(json.loads(json.dumps(plain_spaces(SPACES))))
    assert again == SPACES
    assert list(again["nested"][0]) == ["z", "a"]
    assert plain_spaces({"text": (spaces.Text(3), spaces.Discrete(2))}) is None


def test_an_environment_of_spaces_alone_refuses_to_be_used():
    env = SpacesOnly(plain_spaces(SPACES)["box"])
    assert isinstance(env, gym.Env)
    for use in (env.reset, lambda: env.step(0)):
        with pytest.raises(RuntimeError, match="spaces only"):
            use()

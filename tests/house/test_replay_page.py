"""docs/replay.md: its files work unchanged, are resumed to the bit, and do what they say."""

import sys

import gymnasium
import numpy as np
import pytest
from pages import blocks, page

from rlrun import SampleBatch, load_experiment, run_experiment
from rlrun.config.registry import algorithm_class
from rlrun.experiment.export import export
from rlrun.experiment.run import resume_experiment

PAGE = page("replay.md")
FILES = dict(zip(("ez", "qr", "her", "recorded"), blocks(PAGE, "python"), strict=True))
EZ_YAML, QR_YAML, HER_YAML = blocks(PAGE, "yaml")
EXPERIMENTS = {
    "ez": EZ_YAML,
    "qr": QR_YAML,
    "her": HER_YAML.replace("my.envs", __name__),
    "recorded": "algorithm: 'recorded:RecordedDQN'\nenv: CartPole-v1\n",
}
SHORT = [
    *("seed=1", "replay.store_in_checkpoints=true", "checkpoint.metric=episode_return_mean"),
    *("training.train_batch_size=48", "env_runners.rollout_fragment_length=auto"),
    *("training.num_steps_sampled_before_learning_starts=10", "evaluation.interval=null"),
]


class BitFlip(gymnasium.Env):
    """Flip bits until they equal the goal: reward 0 at the goal, -1 elsewhere."""

    def __init__(self, n):
        self.n = n
        bits = gymnasium.spaces.Box(0, 1, (n,), np.float32)
        names = "observation", "achieved_goal", "desired_goal"
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(names, bits))
        self.action_space = gymnasium.spaces.Discrete(n)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = np.float32(self.np_random.integers(2, size=(2, self.n)))
        self.steps = 0
        return self.observation(), {}

    def observation(self):
        seen = {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}
        return {name: bits.copy() for name, bits in seen.items()}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        reached = bool((self.bits == self.goal).all())
        truncated = self.steps == self.n and not reached
        return self.observation(), float(reached) - 1, reached, truncated, {"is_success": reached}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the files of the page, and recorded episodes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / f"{name}.yaml").write_text(EXPERIMENTS[name])
    rng, ends = np.random.default_rng(0), np.arange(30) % 10 == 9
    observations = np.float32(rng.normal(size=(2, 30, 4)))
    np.savez(
        "episodes.npz",
        obs=observations[0],
        next_obs=observations[1],
        action=rng.integers(2, size=30),
        reward=np.ones(30),
        terminated=ends,
        truncated=np.zeros(30, bool),
        episode=np.arange(30) // 10,
    )
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.fixture
def make(folder, built):
    """Make the algorithm of a file of the page."""

    def make(name, *overrides):
        experiment = load_experiment(folder / f"{name}.yaml", [*SHORT, *overrides])
        return built(algorithm_class(experiment.algorithm), experiment)

    return make


@pytest.mark.parametrize("name", FILES)
def test_its_files_are_resumed_to_the_bit(folder, name):
    for run_dir, steps in ("whole", 144), ("halves", 96):
        stop = f"stop={{env_steps: {steps}}}"
        run_experiment(f"{name}.yaml", [*SHORT, stop], run_dir=run_dir, console="quiet")
    resume_experiment(folder / "halves", ["stop.env_steps=144"], console="quiet")
    for file in ("weights.safetensors", "state.safetensors"):
        paths = [folder / run / "checkpoints/latest" / file for run in ("whole", "halves")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_exploring_actions_are_held(make):
    waits = "training.num_steps_sampled_before_learning_starts=1000"
    algorithm = make("ez", "training.train_batch_size=600", "exploration.epsilon=0.5", waits)
    rows = algorithm.sample()
    order = np.lexsort((rows["t"], rows["eps_id"]))
    episode, action, left = (rows[name][order] for name in ("eps_id", "actions", "left"))
    follows = (episode[1:] == episode[:-1]) & (left[:-1] > 0)
    assert follows.sum() > 100
    assert (action[1:] == action[:-1])[follows].all()
    assert (left[1:] == left[:-1] - 1)[follows].all()
    assert (np.bincount(action[1:][~follows], minlength=2) > 0).all()


def test_a_policy_that_explores_in_another_way_is_exported(folder):
    run_experiment("ez.yaml", [*SHORT, "stop={env_steps: 48}"], run_dir="run", console="quiet")
    (written,) = export(folder / "run", torchscript=folder / "ez.pt")
    assert written.difference < 1e-5


def test_relabelled_transitions_reach_goals_of_their_own_episode(make):
    algorithm = make("her")
    batch = algorithm.sample()
    made = sys.modules["her"].Hindsight(12, copies=3)(batch)
    size = len(batch)
    assert len(made) == 4 * size
    assert (made["obs"][:size] == batch["obs"]).all()
    for row in range(size, 4 * size):
        of_episode = batch["eps_id"] == batch["eps_id"][row % size]
        goal = made["obs"][row, 12:24]
        assert (batch["new_obs"][of_episode, :12] == goal).all(axis=1).any()
        reached = (made["new_obs"][row, :12] == goal).all()
        assert made["terminateds"][row] == reached
        assert made["rewards"][row] == reached - 1


def test_recorded_transitions_are_in_the_buffer(make):
    algorithm = make("recorded")
    buffer = algorithm.replay.buffers["default_policy"]
    assert len(buffer) == 30
    drawn = buffer.sample(200, np.random.default_rng(0))
    assert isinstance(drawn, SampleBatch)
    assert set(drawn["actions"]) == {0, 1}
    assert drawn["terminateds"].any()


@pytest.mark.learning
@pytest.mark.usefixtures("folder")
def test_quantile_regression_reaches_the_published_return():
    run_experiment("qr.yaml", run_dir="run", console="quiet")
    from rlrun import rollout

    assert rollout("run", episodes=20).statistics["episode_return_mean"] > 475


@pytest.mark.learning
@pytest.mark.usefixtures("folder")
def test_goals_are_reached_with_hindsight_alone():
    settings = ["seed=1", "stop={env_steps: 8_000}", "training.lr=1e-3", "training.tau=0.05"]
    settings += ["training.target_network_update_freq=16", "training.training_intensity=64"]
    settings += ["exploration.epsilon=[[0, 1.0], [4_000, 0.1]]", "evaluation.episodes=50"]
    rates = {}
    for name, change in ("with", []), ("without", ["training.learner_connectors=[]"]):
        interval = "evaluation.interval=8"
        outcome = run_experiment(
            "her.yaml", [*settings, interval, *change], run_dir=name, console="quiet"
        )
        rates[name] = outcome.result["evaluation"]["success_rate"]
    assert rates["with"] > 0.9
    assert rates["without"] < 0.1

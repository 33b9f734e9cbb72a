"""What every algorithm promises, whatever it learns; one row of ALGORITHMS for each."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from seeded_metrics import flat, seeded_part

from rlrun.algorithms.a2c import A2CConfig
from rlrun.algorithms.a3c import A3CConfig
from rlrun.algorithms.appo import APPOConfig
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.impala import IMPALAConfig
from rlrun.algorithms.pg import PGConfig
from rlrun.algorithms.ppo import PPOConfig, ppo_loss
from rlrun.algorithms.sac import SACConfig
from rlrun.data import columns as col
from rlrun.learning.returns import add_advantages

BATCH = 64
TINY = {"train_batch_size": BATCH, "minibatch_size": 16, "num_epochs": 2}
LSTM = {
    "use_lstm": True,
    "lstm_cell_size": 8,
    "max_seq_len": 7,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 8,
    "attention_memory": 6,
    "max_seq_len": 7,
    "attention_use_n_prev_actions": 2,
    "attention_use_n_prev_rewards": 2,
}
ALGORITHMS = {
    "PPO": lambda: PPOConfig().training(**TINY),
    "PPO, LSTM": lambda: PPOConfig().training(**TINY).model(hidden=[8], **LSTM),
    "PPO, GRU": lambda: (
        PPOConfig().training(**TINY).model(hidden=[8], use_gru=True, lstm_cell_size=8)
    ),
    "PPO, attention": lambda: PPOConfig().training(**TINY).model(hidden=[8], **ATTENTION),
    "A2C": lambda: A2CConfig().training(train_batch_size=BATCH, microbatch_size=24),
    "PG": lambda: PGConfig().training(train_batch_size=BATCH),
    "A3C": lambda: A3CConfig().training(train_batch_size=BATCH),
    "IMPALA": lambda: IMPALAConfig().training(**TINY, broadcast_interval=2),
    "IMPALA, LSTM": lambda: (
        IMPALAConfig().training(**TINY, optimizer="rmsprop").model(hidden=[8], **LSTM)
    ),
    "APPO": lambda: (
        APPOConfig()
        .training(**TINY, kl_coeff=0.5, target_network_update_freq=3)
        .training(circular_buffer_num_batches=2, circular_buffer_iterations_per_batch=3)
    ),
    "DQN": lambda: (
        DQNConfig()
        .training(train_batch_size=BATCH, minibatch_size=16, n_step=3)
        .training(num_steps_sampled_before_learning_starts=20, target_network_update_freq=50)
        .exploration(epsilon=[[0, 1.0], [256, 0.1]])
        .replay(capacity=150, prioritized=True, store_in_checkpoints=True)
    ),
    "Rainbow": lambda: (
        DQNConfig()
        .training(train_batch_size=BATCH, minibatch_size=16, n_step=3, num_atoms=7, noisy=True)
        .training(num_steps_sampled_before_learning_starts=20, target_network_update_freq=50)
        .exploration(epsilon=0)
        .replay(capacity=150, prioritized=True, store_in_checkpoints=True)
    ),
    "DQN, GRU": lambda: (
        DQNConfig()
        .training(train_batch_size=BATCH, minibatch_size=16, n_step=2, value_rescaling=True)
        .training(num_steps_sampled_before_learning_starts=20, target_network_update_freq=50)
        .model(hidden=[8], use_gru=True, lstm_cell_size=8, max_seq_len=5)
        .replay(capacity=150, prioritized=True, store_in_checkpoints=True, burn_in=3)
    ),
    "SAC": lambda: (
        SACConfig()
        .training(train_batch_size=BATCH, minibatch_size=16, training_intensity=8, n_step=2)
        .training(num_steps_sampled_before_learning_starts=20)
        .model(hidden=[16])
        .replay(capacity=150, prioritized=True, store_in_checkpoints=True)
    ),
}
# Which fragment comes first depends on the machine, if there are runners to wait for.
ASYNCHRONOUS = ("A3C", "IMPALA", "IMPALA, LSTM", "APPO")
ENVS = {
    "DQN": ("CartPole-v1",),
    "DQN, GRU": ("CartPole-v1",),
    "Rainbow": ("CartPole-v1",),
}  # what does not take every action space
CASES = [
    (name, env) for name in ALGORITHMS for env in ENVS.get(name, ("CartPole-v1", "Pendulum-v1"))
]


def with_actors(names):
    """As parameters; actors take seconds to start, so most of them wait for the slow tier."""
    fast = ("PPO", "DQN", "IMPALA")
    return [pytest.param(n, marks=() if n in fast else pytest.mark.faults) for n in names]


def build(name, env="CartPole-v1", *, runners=0, lanes=2, seed=5, **sections):
    config = (
        ALGORITHMS[name]()
        .environment(env)
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=lanes, num_cpus_per_env_runner=0.1
        )
        .debugging(seed=seed)
    )
    for section, values in sections.items():
        config = getattr(config, section)(**values)
    return config.build()


def train(algorithm, iterations):
    return [seeded_part(algorithm.train()) for _ in range(iterations)]


@pytest.fixture
def built():
    """Builds algorithms and stops them at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(build(*args, **kwargs))
        return made[-1]

    yield make
    for algorithm in made:
        algorithm.stop()


FILTERED = {
    "env_runners": {"observation_filter": "MeanStdFilter"},
    "connectors": {"normalize_rewards": True},
}


@pytest.mark.parametrize(("name", "env"), CASES)
def test_same_seed_same_results_and_other_seed_others(built, name, env):
    first, again, other = (built(name, env, seed=seed, **FILTERED) for seed in (5, 5, 6))
    rows = train(first, 3)
    assert rows == train(again, 3)
    assert rows != train(other, 3)
    for key, value in first.get_weights().items():
        np.testing.assert_array_equal(value, again.get_weights()[key])


@pytest.mark.parametrize(("name", "env"), CASES)
def test_a_restored_algorithm_goes_on_to_the_bit(built, name, env):
    straight = built(name, env, **FILTERED)
    train(straight, 2)
    state, weights = straight.get_state(), straight.get_weights()
    rows = train(straight, 2)
    resumed = built(name, env, **FILTERED)
    resumed.set_weights(weights)
    resumed.set_state(state)
    assert train(resumed, 2) == rows
    for key, value in straight.get_weights().items():
        np.testing.assert_array_equal(value, resumed.get_weights()[key])


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.faults)])
def test_noise_that_lasts_goes_on_to_the_bit(built, runners):
    """From the middle of episodes; SAC's fragments are single steps."""

    def lasting(correlation=0.9):
        training = {"noise_correlation": correlation}
        return built("SAC", "Pendulum-v1", runners=runners, training=training, **FILTERED)

    straight = lasting()
    before = train(straight, 2)
    assert before != train(lasting(0.0), 2)
    state, weights = straight.get_state(), straight.get_weights()
    rows = train(straight, 2)
    assert before + rows == train(lasting(), 4)
    resumed = lasting()
    resumed.set_weights(weights)
    resumed.set_state(state)
    assert train(resumed, 2) == rows


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM"])
def test_complete_episodes_are_restored_to_the_bit_too(built, name):
    whole = {"env_runners": {"batch_mode": "complete_episodes"}}
    straight = built(name, **whole)
    train(straight, 2)
    state, weights = straight.get_state(), straight.get_weights()
    rows = train(straight, 2)
    assert all(row["env_steps_this_iter"] >= TINY["train_batch_size"] for row in rows)
    resumed = built(name, **whole)
    resumed.set_weights(weights)
    resumed.set_state(state)
    assert train(resumed, 2) == rows


@pytest.mark.parametrize("name", ALGORITHMS)
def test_evaluation_changes_nothing_in_the_training_rows(built, name):
    def without_evaluation(row):
        return {key: value for key, value in row.items() if not key.startswith("evaluation")}

    plain = train(built(name, **FILTERED), 3)
    evaluated = train(built(name, evaluation={"interval": 1, "episodes": 3}, **FILTERED), 3)
    assert [without_evaluation(row) for row in plain] == [
        without_evaluation(row) for row in evaluated
    ]
    assert [row["evaluation/episodes"] for row in plain] == [None] * 3
    assert [row["evaluation/episodes"] for row in evaluated] == [3] * 3
    assert plain[0].keys() == evaluated[0].keys()


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_weights_that_are_set_are_those_that_act(built, name):
    """Also where evaluation and the runners have acted with others of the same version."""
    algorithm, other = built(name), built(name, seed=6)
    algorithm.train()
    state = algorithm.get_state()
    for change in (
        lambda: algorithm.set_weights(other.get_weights()),
        lambda: algorithm.set_weights({k: 0 * v for k, v in other.get_weights().items()}),
        lambda: (algorithm.set_weights(other.get_weights()), algorithm.set_state(state)),
    ):
        algorithm.evaluate()
        algorithm.sample_round([3])
        change()
        algorithm.evaluate()
        algorithm.sample_round([3])
        expected = algorithm.policies.acting_weights["default_policy"]
        for runner in (algorithm.evaluator.runner(), algorithm.env_runner_group.local_env_runner):
            np.testing.assert_array_equal(runner.policy.get_weights(), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_has_the_same_keys_and_timers_add_up(built, name):
    algorithm = built(name, evaluation={"interval": 2, "episodes": 1})
    rows = [algorithm.train() for _ in range(4)]
    assert len({tuple(key for key, _ in flat(row)) for row in rows}) == 1
    for earlier, later in pairwise(rows):
        wall = later["time_s"] - earlier["time_s"]
        assert sum(later["timers"].values()) == pytest.approx(wall, rel=1e-6)
        assert later["timers"]["other_s"] >= 0


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_an_iteration_samples_exactly_the_train_batch(built, name, lanes):
    check_exact_batches(built, name, 0, lanes)


def test_with_one_agent_env_steps_and_agent_steps_are_the_same(built):
    rows = [
        train(built("PPO", multi_agent={"count_steps_by": unit}), 2)
        for unit in ("env_steps", "agent_steps")
    ]
    assert rows[0] == rows[1]
    assert [row["agent_steps"] for row in rows[0]] == [row["env_steps"] for row in rows[0]]


@pytest.mark.parametrize("name", with_actors(ALGORITHMS))
@pytest.mark.parametrize(("runners", "lanes"), [(2, 2), (3, 4)])
def test_remote_runners_sample_exactly_the_train_batch(built, name, runners, lanes):
    check_exact_batches(built, name, runners, lanes)


def check_exact_batches(built, name, runners, lanes):
    algorithm = built(name, runners=runners, lanes=lanes)
    for iteration in (1, 2):
        row = algorithm.train()
        assert row["env_steps_this_iter"] == BATCH
        assert row["env_steps"] == iteration * BATCH
        finished = row["episodes"]
        assert finished >= row["episodes_this_iter"]


@pytest.mark.parametrize(
    "name", with_actors(name for name in ALGORITHMS if name not in ASYNCHRONOUS)
)
def test_two_runs_with_remote_runners_agree(built, name):
    first, again = (built(name, runners=2, **FILTERED) for _ in range(2))
    assert train(first, 3) == train(again, 3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_what_to_do_in_two_states(built, name):
    """It is shown one of two tokens and has to name it; ten times right is a return of 10."""
    names_tokens = {"use": "RepeatAfterMe", "delay": 0, "length": 10}
    fast = {"training": {"lr": 0.01}, "evaluation": {"episodes": 5}}
    algorithm = built(name, names_tokens, seed=2, **fast)
    assert algorithm.evaluate()["episode_return_mean"] < 10
    right_in_a_row = 0
    for _ in range(40):
        algorithm.train()
        right = algorithm.evaluate()["episode_return_mean"] == 10
        right_in_a_row = right_in_a_row + 1 if right else 0
        if right_in_a_row == 3:
            return
    pytest.fail(f"{name} does not name the token that it sees after {40 * BATCH} env steps")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_policies_that_are_not_trained_do_not_change(built, name):
    policies = {"learns": {}, "frozen": {"train": False}}
    agents = {"agent_0": "learns", "agent_1": "frozen"}
    algorithm = built(
        name, "MultiAgentCartPole", multi_agent={"policies": policies, "agents": agents}
    )
    before = algorithm.get_weights()
    for _ in range(2):
        algorithm.train()
    changed = {
        key.partition("/")[0]
        for key, value in algorithm.get_weights().items()
        if value.tobytes() != before[key].tobytes()
    }
    assert changed == {"learns"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gpu_learns_what_the_cpu_learns(built, name):
    """Of one iteration, before rounding has led to other actions."""
    rows, weights = [], []
    for device in ("cpu", "cuda"):
        algorithm = built(name, resources={"device": device})
        assert algorithm.learner.device.type == device
        rows.append(algorithm.train())
        weights.append(algorithm.get_weights())
    assert rows[0]["env_steps"] == rows[1]["env_steps"]
    for key, value in weights[0].items():
        np.testing.assert_allclose(weights[1][key], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_of_zero_is_exactly_zero(built, name):
    algorithm = built(name, training={"lr": 0.0})
    before = algorithm.get_weights()
    row = algorithm.train()
    assert row["learners"]["default_policy"]["learner_stats"]["lr"] == 0.0
    for key, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_pitfalls_11_60_the_ratio_is_exactly_1_on_the_first_minibatch(built, env):
    algorithm = built("PPO", env, **FILTERED)
    algorithm.train()
    algorithm.unneeded = {}  # PPO itself does not ask for the runner's numbers
    batch = algorithm.sample()
    sampled_logp = batch[col.ACTION_LOGP].copy()
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    module = algorithm.learner.module
    add_advantages(rows, batch, module, 0.99, 0.95)
    # The runner's own numbers say the same, so the weights it acted with were these.
    recomputed = rows.columns[col.ACTION_LOGP].numpy()
    np.testing.assert_allclose(recomputed, sampled_logp, rtol=1e-4, atol=1e-5)
    first = next(iter(rows.minibatches(1, 16, np.random.default_rng(0))))
    with torch.no_grad():
        inputs = module.forward_train(first)[col.ACTION_DIST_INPUTS]
        logp = module.distribution.logp(inputs, first[col.ACTIONS])
    ratio = (logp - first[col.ACTION_LOGP]).exp()
    assert ratio.tolist() == [1.0] * 16
    arguments = {"vf_loss_coeff": 0.5, "vf_clip_param": None, "entropy_coeff": 0.0, "kl_coeff": 0.0}
    _, statistics = ppo_loss(module, first, clip_param=0.2, **arguments)
    assert statistics["clip_fraction"] == 0
    assert statistics["approx_kl"] == 0


class Views(gym.Env):
    """An image, or one in a nested observation, that says little; episodes of 5 to 9 steps."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, nested=False):
        image = gym.spaces.Box(0, 255, (9, 9, 1), np.uint8)
        parts = {"image": image, "left": gym.spaces.Discrete(10)}
        self.observation_space = gym.spaces.Dict(parts) if nested else image
        self.nested = nested

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 10))
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        return self._seen(), float(action), self.left == 0, False, {}

    def _seen(self):
        image = self.np_random.integers(0, 256, (9, 9, 1), np.uint8)
        return {"image": image, "left": self.left} if self.nested else image


@pytest.mark.parametrize("name", ["PPO, LSTM", "PPO, GRU", "PPO, attention"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "image", "nested"])
def test_the_ratio_is_1_over_sequences_too(built, name, env):
    """Behind hidden layers and behind convolutions, with every memory."""
    images = {"image": {}, "nested": {"nested": True}}
    if env in images:
        filtered = {} if env == "image" else FILTERED
        algorithm = built(name, {"use": f"{__name__}:Views", **images[env]}, **filtered)
    else:
        algorithm = built(name, env, **FILTERED)
    algorithm.train()
    algorithm.unneeded = {}
    batch = algorithm.sample()
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    module = algorithm.learner.module
    add_advantages(rows, batch, module, 0.99, 0.95)
    recomputed = rows.columns[col.ACTION_LOGP].numpy()
    np.testing.assert_allclose(recomputed, batch[col.ACTION_LOGP], rtol=1e-4, atol=1e-5)
    for first in rows.minibatches(1, 16, np.random.default_rng(0)):
        with torch.no_grad():
            inputs = module.forward_train(first)[col.ACTION_DIST_INPUTS]
            logp = module.distribution.logp(inputs, first[col.ACTIONS])
        ratio = (logp - first[col.ACTION_LOGP]).exp()
        np.testing.assert_allclose(ratio, 1.0, atol=1e-5)


def test_pitfall_3_an_annealed_learning_rate_ends_above_zero(built):
    algorithm = built("PPO", training={"lr": [[0, 1e-3], [64 * 4, 0.0]]})
    rates = [
        algorithm.train()["learners"]["default_policy"]["learner_stats"]["lr"] for _ in range(4)
    ]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


@pytest.mark.learning  # not learning, but a minute of compiling on a busy machine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_compilation_learns_the_same(built):
    torch.compiler.reset()
    plain = built("PPO")
    compiled = built("PPO", resources={"compile": True})
    assert not torch._dynamo.utils.counters["stats"]  # the trial of columns compiles nothing
    for algorithm in (plain, compiled):
        algorithm.train()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for key, value in plain.get_weights().items():
        np.testing.assert_allclose(compiled.get_weights()[key], value, rtol=1e-3, atol=1e-5)

"""What every algorithm promises, with one agent and with several; a row of `tiny` for each."""

import copy
import functools
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from recorded_calls import compute_as_on_a_gpu, record_on_the_cpu
from slow_cases import MEMORIES, slow_with_memory
from tiny import (
    ALGORITHMS,
    BATCH,
    CONFIGS,
    FILTERED,
    SEVERAL_AGENTS,
    TINY,
    assert_equal_weights,
    build,
    flat,
    learner_stats,
    train,
)

from rlrun.algorithms.ppo import PPO, ppo_gradient, ppo_loss
from rlrun.data import columns as col
from rlrun.envs.errors import EnvError
from rlrun.learning.loaded_batch import as_tensors
from rlrun.learning.returns import add_advantages
from rlrun.policies.rl_module import ActorCritic

# Which fragment comes first depends on the machine, if there are runners to wait for.
ASYNCHRONOUS = ("A3C", "IMPALA", "IMPALA, LSTM", "APPO")
DISCRETE_ALONE = ("DQN", "DQN, GRU", "Rainbow")
REPLAYS = (*DISCRETE_ALONE, "SAC")
CASES = [
    *((name, "CartPole-v1") for name in ALGORITHMS),
    *(slow_with_memory(n, "Pendulum-v1") for n in ALGORITHMS if n not in DISCRETE_ALONE),
    *(slow_with_memory(name, SEVERAL_AGENTS) for name in CONFIGS),
]


@dataclass(frozen=True)
class Trained:
    """What an algorithm has returned that several tests compare others with.

    Attributes:
        rows: results of four iterations.
        checkpoint: after two of them.
        evaluated: result of an evaluation after two.
        weights: after two and after four.
    """

    rows: list[Any]
    checkpoint: Path
    evaluated: Any
    weights: tuple[Any, Any]


EVALUATED = {"evaluation": {"episodes": 2, "seed": 3}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`Trained`, by the algorithm's name and environment."""

    @functools.cache
    def train_once(name, env):
        algorithm = build(name, env, **FILTERED, **EVALUATED)
        checkpoint = tmp_path_factory.mktemp("trained")
        rows = train(algorithm, 2)
        algorithm.save(checkpoint)
        evaluated, weights = algorithm.evaluate(), copy.deepcopy(algorithm.get_weights())
        rows += train(algorithm, 2)
        algorithm.stop()
        return Trained(rows, checkpoint, evaluated, (weights, algorithm.get_weights()))

    return train_once


@pytest.mark.parametrize(("name", "env"), CASES)
def test_equal_seeds_give_equal_results_evaluated_or_not_and_other_seeds_others(
    built, trained, name, env
):
    plain, other = trained(name, env), built(name, env, seed=6, **FILTERED)
    evaluated = built(name, env, evaluation={"interval": 1, "episodes": 2}, **FILTERED)
    assert plain.rows[0] != train(other, 1)[0]
    for row, same in zip(plain.rows[:2], train(evaluated, 2), strict=True):
        assert (row["evaluation/episodes"], same["evaluation/episodes"]) == (None, 2)
        assert row.keys() == same.keys()
        different = {key for key in row if row[key] != same[key]}
        assert all(key.startswith("evaluation/") for key in different), different
    assert_equal_weights(plain.weights[0], evaluated)


@pytest.mark.parametrize(("name", "env"), CASES)
def test_a_restored_algorithm_goes_on_to_the_bit(built, trained, name, env):
    straight, resumed = trained(name, env), built(name, env, **FILTERED)
    resumed.restore(straight.checkpoint)
    assert train(resumed, 2) == straight.rows[2:]
    assert_equal_weights(straight.weights[1], resumed)


@pytest.mark.parametrize("name", ["PPO", "A3C", "IMPALA", "DQN"])
def test_a_restored_algorithm_forgets_an_iteration_that_failed(built, tmp_path, monkeypatch, name):
    algorithm = built(name, SEVERAL_AGENTS, **FILTERED)
    train(algorithm, 2)
    algorithm.save(tmp_path / "checkpoint")
    rows = train(algorithm, 2)
    algorithm.restore(tmp_path / "checkpoint")
    step = algorithm.training_step

    def step_and_fail():
        step()
        raise RuntimeError("of a callback")

    with monkeypatch.context() as patched:
        patched.setattr(algorithm, "training_step", step_and_fail)
        with pytest.raises(RuntimeError, match="of a callback"):
            train(algorithm, 1)
    algorithm.restore(tmp_path / "checkpoint")
    assert train(algorithm, 2) == rows


@pytest.mark.parametrize(("name", "env"), CASES)
def test_initial_weights_act_as_they_did(built, trained, name, env):
    source = trained(name, env)
    initial = {"initial_weights": {"source": source.checkpoint}}
    begun = built(name, env, seed=6, **initial, **FILTERED, **EVALUATED)
    assert begun.evaluate() == source.evaluated
    assert_equal_weights(begun, source.weights[0])
    assert begun.env_steps == 0


@pytest.mark.parametrize(
    ("name", "env"), [("PPO", "MultiAgentCartPole"), ("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1")]
)
def test_initial_weights_are_not_read_again(built, tmp_path, name, env):
    source = built(name, env, **FILTERED)
    train(source, 1)
    source.save(tmp_path / "source")
    begun = built(name, env, seed=6, initial_weights={"source": tmp_path / "source"}, **FILTERED)
    train(begun, 2)
    begun.save(tmp_path / "begun")
    shutil.rmtree(tmp_path / "source")
    resumed = built(type(begun).from_checkpoint, tmp_path / "begun")
    assert train(resumed, 2) == train(begun, 2)
    assert_equal_weights(begun, resumed)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_layers_that_count_their_batches_are_restored_to_the_bit(built, tmp_path, momentum):
    model = {"use": "tiny:Normalises", "momentum": momentum}
    straight, resumed = (built("PPO", model=model) for _ in range(2))
    train(straight, 2)
    straight.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    begun = built("PPO", model=model, initial_weights={"source": tmp_path / "checkpoint"})
    counts = [algorithm.learner.get_state()["buffers"] for algorithm in (begun, straight)]
    assert counts[0] == counts[1] != {}
    assert train(resumed, 2) == train(straight, 2)
    assert_equal_weights(straight, resumed)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_buffers_may_be_infinite(built, tmp_path, name):
    straight, resumed = (built(name, model={"use": "tiny:HasMask"}) for _ in range(2))
    train(straight, 3)
    straight.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    assert train(resumed, 2) == train(straight, 2)
    assert_equal_weights(straight, resumed)


class Modes(ActorCritic):
    """Notes with and without gradients: whether it, and its parts, are in training mode."""

    found: ClassVar = set()

    def forward_train(self, batch):
        self.found.add((torch.is_grad_enabled(), self.training, self.pi.training))
        return super().forward_train(batch)


@pytest.mark.parametrize("env", ["CartPole-v1", "rlrun.envs.examples:PlayCards"])
@pytest.mark.parametrize("name", ["PPO", "A2C", "PG", "A3C", "IMPALA", "APPO"])
def test_only_what_is_learned_is_computed_in_training_mode(built, name, env):
    algorithm = built(name, env, model={"use": f"{__name__}:Modes"})
    Modes.found.clear()
    train(algorithm, 2)
    train_mode, as_acted = (True, True, True), (False, False, False)
    assert Modes.found - {as_acted} == {train_mode}


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "SAC"])
def test_an_action_that_is_not_finite_is_the_policys_fault(built, name):
    algorithm = built(name, "Pendulum-v1")
    weights = algorithm.get_weights()
    algorithm.set_weights({key: np.full_like(value, np.nan) for key, value in weights.items()})
    with pytest.raises(EnvError, match=r"the policy's action is \[nan\]\naction failed: .*step 0"):
        algorithm.train()


@pytest.mark.parametrize("part", ["its network", "its last part"])
def test_an_algorithm_that_cannot_be_built_closes_its_environments(built, monkeypatch, part):
    def fail(algorithm):
        raise KeyError("its last part")

    model = {"use": "tiny:CannotBeBuilt"} if part == "its network" else {}
    monkeypatch.setattr(PPO, "setup", fail)
    with pytest.raises(KeyError, match=part):
        built("PPO", model=model, env_runners={"gym_env_vectorize_mode": "async"})
    assert not multiprocessing.active_children()


def kill_a_runner(algorithm):
    """While its next fragment is waited for: it is stopped, so that no iteration ends before."""
    *_, victim = algorithm.env_runner_group.foreach_env_runner(lambda runner: os.getpid())
    os.kill(victim, signal.SIGSTOP)
    threading.Timer(0.01, os.kill, [victim, signal.SIGKILL]).start()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "env"),
    [
        *((name, "CartPole-v1") for name in ALGORITHMS if name not in ASYNCHRONOUS),
        *((name, SEVERAL_AGENTS) for name in ("PPO", "DQN, GRU")),
    ],
)
def test_a_killed_runner_changes_no_number(shared_actors, built, record_fault, name, env):
    whole, hit = (built(name, env, runners=2, **FILTERED) for _ in range(2))
    before = train(hit, 1)
    assert before == train(whole, 1)
    kill_a_runner(hit)
    rows = train(hit, 3)
    assert_exact_batches(before + rows)
    assert rows[-1]["env_runners/restarts_by_cause/died"] == 1
    for row in rows:
        row["env_runners/restarts"] = row["env_runners/restarts_by_cause/died"] = 0
    assert rows == train(whole, 3)
    assert_equal_weights(whole, hit)
    record_fault(lost=[rows[-1]["env_runners/dropped_env_steps"]])


@pytest.mark.faults
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_the_steps_of_a_runner_that_is_lost_are_sampled_by_the_others(
    shared_actors, built, record_fault, name, ahead
):
    """The batch is what it says, and no step is counted that was not learned from."""
    ignored = {"restart_failed_env_runners": False, "ignore_env_runner_failures": True}
    sampling = {"sample_async": ahead}
    algorithm = built(name, runners=2, fault_tolerance=ignored, env_runners=sampling)
    algorithm.train()
    kill_a_runner(algorithm)
    for iteration in (2, 3, 4):
        row = algorithm.train()
        assert row["env_steps"] == iteration * BATCH
    assert row["env_runners"]["healthy"] == 1
    most = BATCH if ahead else BATCH / 2  # of the round that ran, and of the one behind it
    assert 0 < row["env_runners"]["dropped_env_steps"] <= most
    record_fault(lost=[row["env_runners"]["dropped_env_steps"]])


@pytest.mark.parametrize("returned", [None, {"policy_loss": 1.0}])
def test_what_a_training_step_must_return_is_said(built, monkeypatch, returned):
    algorithm = built("PPO")
    monkeypatch.setattr(algorithm, "training_step", lambda: returned)
    says = f"a dict, policy id -> its learner's results, not {returned!r}"
    with pytest.raises(TypeError, match=re.escape(says)):
        algorithm.train()


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


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_weights_that_are_set_act(built, name):
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
        expected = algorithm.learner.get_weights()
        for runner in (algorithm.evaluator.runner(), algorithm.env_runner_group.local_env_runner):
            acting = runner.policies["default_policy"].get_weights()
            np.testing.assert_array_equal(acting, expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_has_the_same_keys_and_timers_add_up(built, name):
    algorithm = built(name, evaluation={"interval": 2, "episodes": 1})
    rows = [algorithm.train() for _ in range(4)]
    assert len({tuple(key for key, _ in flat(row)) for row in rows}) == 1
    for earlier, later in pairwise(rows):
        wall = later["time_s"] - earlier["time_s"]
        assert sum(later["timers"].values()) == pytest.approx(wall, rel=1e-6)
        assert later["timers"]["other_s"] >= 0
        for steps in ("env_steps", "agent_steps_trained"):
            assert later[f"{steps}_per_s"] * wall == pytest.approx(later[f"{steps}_this_iter"])


def test_the_time_that_building_takes_is_no_part_of_the_first_iteration(built, monkeypatch):
    setup = PPO.setup
    monkeypatch.setattr(PPO, "setup", lambda self: time.sleep(0.2) or setup(self))
    row = built("PPO").train()
    assert row["timers"]["other_s"] < min(0.2, row["time_s"])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("num_envs", [1, 4])
def test_an_iteration_samples_exactly_the_train_batch(built, name, num_envs):
    assert_exact_batches(train(built(name, num_envs=num_envs), 2))


def assert_exact_batches(rows):
    """Check the results of the first iterations."""
    for iteration, row in enumerate(rows, start=1):
        assert row["env_steps_this_iter"] == BATCH
        assert row["env_steps"] == iteration * BATCH
        assert row["episodes"] >= row["episodes_this_iter"]


def test_with_one_agent_env_steps_and_agent_steps_are_the_same(built):
    rows = [
        train(built("PPO", multi_agent={"count_steps_by": unit}), 2)
        for unit in ("env_steps", "agent_steps")
    ]
    assert rows[0] == rows[1]
    assert [row["agent_steps"] for row in rows[0]] == [row["env_steps"] for row in rows[0]]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "runners", "num_envs"),
    [
        *((name, 3, 4) for name in ALGORITHMS),  # fragments of two lengths
        *((name, 2, 2) for name in ASYNCHRONOUS),
    ],
)
def test_remote_runners_sample_exactly_the_train_batch(
    shared_actors, built, name, runners, num_envs
):
    assert_exact_batches(train(built(name, runners=runners, num_envs=num_envs), 2))


@pytest.mark.parametrize("name", [slow_with_memory(name) for name in ALGORITHMS])
def test_it_learns_what_to_do_in_two_states(built, name):
    """It is shown one of two tokens and has to name it; ten times right is a return of 10."""
    names_tokens = {"use": "RepeatAfterMe", "delay": 0, "length": 10}
    fast = {"lr": 0.01, "train_batch_size": 64}
    if name in REPLAYS:
        fast["training_intensity"] = 8
    algorithm = built(name, names_tokens, seed=2, training=fast, evaluation={"episodes": 5})
    assert algorithm.evaluate()["episode_return_mean"] < 10
    right_in_a_row = 0
    for _ in range(40):
        algorithm.train()
        right = algorithm.evaluate()["episode_return_mean"] == 10
        right_in_a_row = right_in_a_row + 1 if right else 0
        if right_in_a_row == 3:
            return
    pytest.fail(f"{name} does not name the token that it sees after {40 * 64} env steps")


@pytest.mark.parametrize("name", CONFIGS)
def test_policies_learn_apart_and_frozen_ones_never_change_a_byte(built, name):
    policies = {"agent_0": {}, "agent_1": {"train": False, "model": {"hidden": [5]}}}
    algorithm = built(name, SEVERAL_AGENTS, multi_agent={"policies": policies})
    before = algorithm.get_weights()
    for _ in range(2):
        row = algorithm.train()
    assert set(row["learners"]) == {"agent_0"}
    assert row["learners"]["agent_0"]["num_agent_steps_trained"] > 0
    after = algorithm.get_weights()
    changed = {key for key in before if before[key].tobytes() != after[key].tobytes()}
    assert {key.partition("/")[0] for key in changed} == {"agent_0"}
    assert set(algorithm.sample().policy_batches) == {"agent_0", "agent_1"}


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


WITHOUT_MEMORY = [name for name in ALGORITHMS if name not in MEMORIES]
EXACT = {"lr": 2.0**-11}  # as float32, too: a recorded update reads it from the device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_cuda_graphs_compute_what_their_kernels_compute_one_by_one(built, name):
    settings = [{"device": "cuda", "cuda_graphs": graphs} for graphs in (False, True)]
    plain, replayed = (built(name, resources=each, training=EXACT) for each in settings)
    assert train(replayed, 3) == train(plain, 3)
    assert_equal_weights(plain, replayed)


@pytest.mark.parametrize(
    ("name", "env"), [*((name, "CartPole-v1") for name in WITHOUT_MEMORY), ("SAC", "Pendulum-v1")]
)
def test_updates_can_be_replayed_without_their_python(built, monkeypatch, name, env):
    compute_as_on_a_gpu(monkeypatch)
    plain = built(name, env, training=EXACT)
    rows = train(plain, 3)
    stand_in = record_on_the_cpu(monkeypatch)
    replayed = built(name, env, training=EXACT)
    assert train(replayed, 3) == rows
    assert_equal_weights(plain, replayed)
    assert stand_in.replays > stand_in.recordings > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_learning_rate_of_zero_is_exactly_zero(built, name):
    algorithm, untrained = (built(name, training={"lr": 0.0}) for _ in range(2))
    assert learner_stats(algorithm)["lr"] == 0.0
    assert_equal_weights(algorithm, untrained)


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


IMAGES = {"image": {}, "nested": {"nested": True}}


@pytest.mark.parametrize(
    ("name", "env"),
    [
        *(("PPO", env) for env in ("CartPole-v1", "Pendulum-v1")),
        *(
            (name, env)
            for name in MEMORIES
            if name.startswith("PPO")
            for env in ("CartPole-v1", "Pendulum-v1", *IMAGES)
        ),
    ],
)
def test_the_probability_ratio_is_1_before_the_first_update(built, name, env):
    """In closed form but for a last bit; behind layers and convolutions, with every memory."""
    filtered = {} if env in IMAGES else FILTERED  # which refuse images
    views = {"use": f"{__name__}:Views", **IMAGES.get(env, {})}
    algorithm = built(name, views if env in IMAGES else env, **filtered)
    algorithm.train()
    algorithm.policies.reads.set_state({})  # PPO itself does not read the runner's numbers
    batch, module = algorithm.sample(), algorithm.learner.module
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.99, 0.95)
    # The runner's own numbers say the same, so the weights it acted with were these.
    recomputed = rows.columns[col.ACTION_LOGP]
    np.testing.assert_allclose(recomputed, batch[col.ACTION_LOGP], rtol=1e-4, atol=1e-5)
    for minibatch in rows.minibatches(1, 16, np.random.default_rng(0)):
        terms = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": None}
        terms |= {"entropy_coeff": 0.0, "kl_coeff": 0.0}
        if name == "PPO":
            stats = ppo_gradient(module, minibatch, **terms)
            assert stats["clip_fraction"] == 0.0
            assert stats["approx_kl"] == pytest.approx(0.0, abs=1e-13)
        tensors = as_tensors(minibatch, torch.device("cpu"))
        with torch.no_grad():
            inputs = module.forward_train(tensors)[col.ACTION_DIST_INPUTS]
            logp = module.distribution.logp(inputs, tensors[col.ACTIONS])
            _, stats = ppo_loss(module, tensors, **terms)
        ratio = (logp - tensors[col.ACTION_LOGP]).exp()
        np.testing.assert_allclose(ratio, 1.0, atol=1e-6 if name == "PPO" else 1e-5)
        assert stats["clip_fraction"] == 0.0


def test_an_annealed_learning_rate_ends_above_zero(built):
    algorithm = built("PPO", training={"lr": [[0, 1e-3], [BATCH * 4, 0.0]]})
    rates = [learner_stats(algorithm)["lr"] for _ in range(4)]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


@pytest.mark.learning  # not learning, but a minute of compiling on a busy machine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_compilation_learns_the_same(built):
    torch.compiler.reset()
    plain = built("PPO")
    compiled = built("PPO", resources={"compile": True})
    assert not torch._dynamo.utils.counters["stats"]
    for algorithm in (plain, compiled):
        algorithm.train()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for key, value in plain.get_weights().items():
        np.testing.assert_allclose(compiled.get_weights()[key], value, rtol=1e-3, atol=1e-5)

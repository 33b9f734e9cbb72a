"""Several learners make the steps of one: each part and its weight, then two processes."""

import math
import os
import signal
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import PPOConfig
from rlrun.actors.ray_runtime import ResourceError, Resources, preflight
from rlrun.algorithms.a2c import a2c_loss
from rlrun.algorithms.ppo import ppo_gradient, ppo_loss
from rlrun.config.problems import ConfigError, user_traceback
from rlrun.config.schema import EnvRunnersConfig, LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning import learner_group
from rlrun.learning.learner import Learner
from rlrun.learning.learner_group import LearnerGroup, LearnerHost, LearnersError, build_learner
from rlrun.learning.loaded_batch import as_tensors
from rlrun.learning.process_group import ProcessGroup, host_store, join_store, part_of_rank
from rlrun.learning.returns import standardized_advantages
from rlrun.policies.catalog import build_module
from rlrun.policies.networks import MLP

SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)
NAMES = (col.ACTIONS, col.ADVANTAGES, col.VALUE_TARGETS, col.ACTION_LOGP, col.VF_PREDS)
PPO = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": None, "entropy_coeff": 0.01}
A2C = {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
TRAINING = TrainingConfig(grad_clip=0.5)
TWO = LearnersConfig(device="cpu", num_learners=2, num_cpus_per_learner=0.1)
NO_RESTARTS = TWO.model_copy(update={"max_num_learner_restarts": 0})


def make_module(**model):
    torch.manual_seed(0)
    return build_module(SPACE, gym.spaces.Discrete(4), ModelConfig(hidden=(8,), **model))


def make_batch(n=45):
    rng = np.random.default_rng(0)
    storage = rng.normal(size=(n + 1, 3)).astype(np.float32)
    columns = {name: rng.normal(size=n).astype(np.float32) for name in NAMES[1:]}
    batch = SampleBatch({col.ACTIONS: rng.integers(4, size=n), **columns})
    batch[col.ACTION_LOGP] = np.full(n, -1.4, np.float32)
    batch.set_shared(col.OBS, storage, np.arange(n))
    batch.set_shared(col.NEXT_OBS, storage, np.arange(1, n + 1))
    return batch


def gradient(module, rows, weight=1.0):
    module.zero_grad()
    rows = as_tensors(rows, torch.device("cpu"))
    (weight * a2c_loss(module, rows, **A2C)[0]).backward()
    return np.concatenate([p.grad.flatten().numpy() for p in module.parameters()])


def sequence_rows(lengths):
    rng = np.random.default_rng(1)
    n = sum(lengths)
    rows = {
        col.OBS: torch.tensor(rng.normal(size=(n, 3)), dtype=torch.float32),
        col.ACTIONS: torch.tensor(rng.integers(4, size=n)),
        col.ADVANTAGES: torch.tensor(rng.normal(size=n), dtype=torch.float32),
        col.VALUE_TARGETS: torch.tensor(rng.normal(size=n), dtype=torch.float32),
    }
    states = torch.tensor(rng.normal(size=(len(lengths), 4)), dtype=torch.float32)
    return {**rows, col.SEQ_LENS: torch.tensor(lengths), "state_in_0": states}


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 5, 24])
def test_the_parts_add_up_to_the_gradient_of_the_minibatch(number, size):
    module = make_module()
    learner = Learner(module, TRAINING, LearnersConfig(device="cpu"))
    batch = learner.load(make_batch(size), NAMES)
    (rows,) = batch.minibatches(1, 64, np.random.default_rng(0))
    parts = [part_of_rank(rows, rank, number) for rank in range(number)]
    assert sum(weight for _, weight in parts) == pytest.approx(1)
    summed = sum(gradient(module, *mine) for mine in parts)
    np.testing.assert_allclose(summed, gradient(module, rows), atol=1e-6)


@pytest.mark.parametrize("lengths", [[3, 1, 4, 2, 5], [2], [1, 6]])
def test_sequences_are_never_torn(lengths):
    module = make_module(use_gru=True, lstm_cell_size=4)
    rows = sequence_rows(lengths)
    parts = [part_of_rank(rows, rank, 2) for rank in range(2)]
    for mine, _ in parts:
        assert len(mine[col.OBS]) == mine[col.SEQ_LENS].sum()
        assert len(mine["state_in_0"]) == len(mine[col.SEQ_LENS])
    summed = sum(gradient(module, *mine) for mine in parts)
    np.testing.assert_allclose(summed, gradient(module, rows), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "number", "sizes"), [(5, 2, [3, 2]), (2, 2, [1, 1]), (2, 3, [2] * 3)]
)
def test_rows_go_round_and_fewer_rows_than_learners_go_to_each(size, number, sizes):
    rows = {col.OBS: torch.arange(size)[:, None], col.ACTIONS: torch.arange(size)}
    parts = [part_of_rank(rows, rank, number) for rank in range(number)]
    assert [len(part[col.OBS]) for part, _ in parts] == sizes
    if sizes[0] < size:
        assert [part[col.ACTIONS].tolist() for part, _ in parts] == [
            list(range(rank, size, number)) for rank in range(number)
        ]
        assert [weight for _, weight in parts] == [n / size for n in sizes]


@pytest.mark.parametrize(("lengths", "expected"), [([2, 1], [[0, 1], [2]]), ([3], [[0, 1, 2]] * 2)])
def test_sequences_go_round_too(lengths, expected):
    rows = sequence_rows(lengths)
    rows[col.ACTIONS] = torch.arange(sum(lengths))
    parts = [part_of_rank(rows, rank, 2)[0] for rank in range(2)]
    assert [part[col.ACTIONS].tolist() for part in parts] == expected


@pytest.fixture
def host():
    """The inside of a learner's actor, in this process and alone in its group."""
    made = LearnerHost(0, 1)
    made.build(make_module(), TRAINING, LearnersConfig(device="cpu", num_learners=1))
    made.join(made.open_store())
    yield made
    torch.distributed.destroy_process_group()


@pytest.fixture
def alone():
    return Learner(make_module(), TRAINING, LearnersConfig(device="cpu"))


def test_the_actor_of_one_learner_makes_its_steps_and_goes_back_to_where_it_began(host, alone):
    rows = alone.load(make_batch(), NAMES)
    steps = {"lr": 1e-2, "gradient": None, "stop_early": None}
    theirs, own = (rows.minibatches(1, 16, np.random.default_rng(4)) for _ in range(2))
    start = alone.named_weights()
    host.begin(3)
    statistics, weights, rng_state = host.update(theirs, a2c_loss, A2C, steps)
    assert statistics == pytest.approx(alone.update(own, a2c_loss, A2C, **steps))
    assert rng_state == own.rng.bit_generator.state
    np.testing.assert_array_equal(weights, alone.get_weights())
    microbatches = list(rows.microbatches(16))
    means, weights = host.accumulate(microbatches, rows.size, a2c_loss, A2C, {"lr": 1e-2})
    assert means == alone.accumulate(microbatches, rows.size, a2c_loss, A2C, lr=1e-2)
    np.testing.assert_array_equal(weights, alone.get_weights())

    now, before = host.state(), host.state(before=True)
    for name, value in alone.named_weights().items():
        np.testing.assert_array_equal(now["weights"][name], value)
        np.testing.assert_array_equal(before["weights"][name], start[name])
    assert now["optimizer"]["optimizer"]["num_steps"] == 4
    assert before["optimizer"]["optimizer"]["num_steps"] == 0
    host.join(host.open_store(), before)
    assert host.call("get_state")["optimizer"]["num_steps"] == 0
    np.testing.assert_array_equal(
        host.call("get_weights"), np.concatenate([value.ravel() for value in start.values()])
    )
    host.join(host.open_store())  # of a learner that was built anew: its own state
    assert host.call("get_state")["optimizer"]["num_steps"] == 0


def test_a_learner_that_fails_leaves_the_group_and_can_join_another(host, alone):
    def fails(module, rows):
        raise ZeroDivisionError

    rows = alone.load(make_batch(), NAMES)
    with pytest.raises(ZeroDivisionError):
        host.accumulate(list(rows.microbatches(None)), rows.size, fails, {}, {"lr": 0.0})
    assert not torch.distributed.is_initialized()
    host.join(host.open_store())
    assert torch.distributed.is_initialized()


@pytest.mark.parametrize("value", [-3.0, math.inf, -math.inf, math.nan])
def test_a_learner_alone_keeps_its_statistics_whatever_they_are(value):
    group = ProcessGroup(0, 1, torch.distributed.HashStore(), "gloo")
    statistics = {"loss": value, "min_ratio": value, "max_kl": value}
    try:
        found = group.all_reduce(torch.zeros(2), statistics, dict.fromkeys(statistics, 0.3))
    finally:
        group.leave()
    for number in found.values():
        assert number.item() == pytest.approx(value, nan_ok=True)


def test_learners_meet_at_the_store_that_the_first_one_made():
    made = host_store("127.0.0.1", 2)
    joined = join_store("127.0.0.1", made.port, 2)
    joined.set("greeting", "hello")
    assert made.get("greeting") == b"hello"


def test_each_learner_of_a_group_draws_other_numbers_and_the_first_alone_returns_weights():
    drawn, weights = [], []
    for rank in range(2):
        host = LearnerHost(rank, 2)
        host.build(make_module(), TRAINING, TWO)
        for seed in (2**32 - 1, 2**32 - 1, 5):
            host.begin(seed)
            drawn.append((rank, seed, float(torch.rand(()))))
        weights.append(host.accumulate([], 1, a2c_loss, A2C, {"lr": 0.0})[1])
    assert len({number for *_, number in drawn}) == 4  # equal seeds give equal numbers
    assert weights[0] is not None
    assert weights[1] is None
    assert host.process_id() == os.getpid()


@pytest.mark.parametrize(
    ("gpus", "device", "backend"), [(0, "cpu", "gloo"), (0.5, "cuda", "gloo"), (1, "cuda", "nccl")]
)
def test_learners_that_share_a_gpu_do_not_talk_through_nccl(monkeypatch, gpus, device, backend):
    class Alone:
        group = None

        def __init__(self, module, training, settings):
            self.device = settings.device
            made.append(self)

    made = []
    monkeypatch.setattr(learner_group, "Learner", Alone)
    monkeypatch.setattr(learner_group, "ProcessGroup", lambda *arguments: arguments)
    monkeypatch.setattr(learner_group, "join_store", lambda *arguments: arguments)
    host = LearnerHost(1, 2)
    host.build(None, TRAINING, TWO.model_copy(update={"num_gpus_per_learner": gpus}))
    host.join(("somewhere", 1234))
    assert made[0].device == device
    assert made[0].group == (1, 2, ("somewhere", 1234, 2), backend)


def test_an_error_of_a_loss_brings_its_traceback_out_of_a_learners_process():
    def one_over_zero(module, rows):
        return 1 / 0

    host = LearnerHost(0, 1)
    host.build(make_module(), TRAINING, LearnersConfig(device="cpu"))
    rows = host._learner.load(make_batch(), NAMES)
    with pytest.raises(ZeroDivisionError) as caught:
        host.accumulate([*rows.microbatches(None)], rows.size, one_over_zero, {}, {"lr": 1e-3})
    (note,) = caught.value.__notes__
    assert "return 1 / 0" in note


@pytest.fixture(scope="module")
def two(local_ray):
    group = build_learner(make_module(), TRAINING, TWO)
    assert isinstance(group, LearnerGroup)
    yield group
    group.stop()


@pytest.fixture
def one(two):
    """A learner alone, and the group put back to the same start."""
    alone = build_learner(make_module(), TRAINING, LearnersConfig(device="cpu"))
    assert type(alone) is Learner
    two.load_named_weights(alone.named_weights())
    two.set_state(alone.get_state())
    return alone


@pytest.mark.parametrize("gradient_of", [None, ppo_gradient])
def test_two_learners_make_the_updates_of_one(one, two, gradient_of):
    np.testing.assert_array_equal(two.get_weights(), one.get_weights())
    results = []
    for learner in (one, two):
        rows = learner.load(make_batch(), NAMES)
        rows.prepare = standardized_advantages
        statistics = learner.update(
            rows.minibatches(3, 16, np.random.default_rng(4)),
            ppo_loss,
            {**PPO, "kl_coeff": 0.0},
            lr=1e-2,
            gradient=gradient_of,
        )
        results.append((statistics, learner.get_weights(), learner.get_state()["optimizer"]))
    (first, weights, adam), (second, others, other_adam) = results
    assert second == pytest.approx(first, abs=1e-5)
    assert first["num_updates"] == 9
    np.testing.assert_allclose(others, weights, atol=1e-5)
    np.testing.assert_allclose(other_adam["mean"], adam["mean"], atol=1e-6)  # gradients, averaged
    assert other_adam["num_steps"] == 9


def test_weights_that_are_loaded_into_the_module_are_what_the_learners_learn(one, two):
    weights = []
    for learner in (one, two):
        other = {name: value + 0.1 for name, value in learner.module.state_dict().items()}
        learner.module.load_state_dict(other)
        rows = learner.load(make_batch(), NAMES)
        learner.update(rows.minibatches(1, 16, np.random.default_rng(4)), a2c_loss, A2C, lr=1e-2)
        weights.append(learner.get_weights())
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-5)


def test_epochs_of_several_updates_are_shuffled_as_with_one_learner(one, two):
    """A generator goes on from one update to the next, as in IMPALA's epochs."""
    weights, drawn = [], []
    for learner in (one, two):
        rows, rng = learner.load(make_batch(), NAMES), np.random.default_rng(4)
        for _ in range(3):
            learner.update(rows.minibatches(1, 16, rng), a2c_loss, A2C, lr=1e-2)
        weights.append(learner.get_weights())
        drawn.append(rng.integers(2**32))
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-5)
    assert drawn[1] == drawn[0]


def test_a_learner_on_a_gpu_takes_no_closed_form_from_a_driver_on_the_cpu(monkeypatch):
    def closed_form(*_arguments, **_settings):
        raise AssertionError("it computes in numpy")

    monkeypatch.setattr(MLP, "has_vjp", False)  # as on a GPU
    learner = build_learner(make_module(), TRAINING, LearnersConfig(device="cpu"))
    rows = learner.load(make_batch(), NAMES)
    minibatches = rows.minibatches(1, 16, np.random.default_rng(4))
    arguments = {**PPO, "kl_coeff": 0.0}
    statistics = learner.update(minibatches, ppo_loss, arguments, lr=1e-2, gradient=closed_form)
    assert statistics["num_updates"] == 3


def test_one_gradient_is_the_same_to_a_millionth(one, two):
    """Adam's first mean is a tenth of the first gradient."""
    for learner in (one, two):
        rows = learner.load(make_batch(), NAMES)
        learner.accumulate(rows.microbatches(16), rows.size, a2c_loss, A2C, lr=1e-2)
    expected, found = (learner.get_state()["optimizer"]["mean"] for learner in (one, two))
    np.testing.assert_allclose(two.get_weights(), one.get_weights(), atol=1e-5)
    np.testing.assert_allclose(found * 10, expected * 10, atol=1e-6)
    assert np.abs(expected).max() > 1e-3


def test_extremes_of_several_learners_are_those_of_all_their_rows(one, two):
    def loss(module, rows, **arguments):  # a local function travels by value
        total, statistics = a2c_loss(module, rows, **arguments)
        obs, advantages = rows[col.OBS], rows[col.ADVANTAGES]
        nothing = torch.tensor(float("nan"))
        in_one = obs.max() if (obs == highest).any() else nothing
        return total, {
            **statistics,
            "min_obs": obs.min(),
            "max_advantage": advantages.max(),
            "max_in_one": in_one,
            "max_in_none": nothing,
        }

    rows = one.load(make_batch(), NAMES)
    (whole,) = rows.microbatches(None)
    highest = whole[col.OBS].max()
    expected = {
        "min_obs": whole[col.OBS].min().item(),
        "max_advantage": whole[col.ADVANTAGES].max().item(),
        "max_in_one": highest.item(),
        "max_in_none": float("nan"),
    }
    for learner in (one, two):
        means = learner.accumulate(rows.microbatches(16), rows.size, loss, A2C, lr=1e-2)
        assert {name: float(means[name]) for name in expected} == pytest.approx(
            expected, nan_ok=True
        )
        minibatches = rows.minibatches(1, 16, np.random.default_rng(4))
        statistics = learner.update(minibatches, loss, A2C, lr=1e-2)
        assert {name: statistics[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_a_statistic_that_one_learner_has_now_and_then_is_the_mean_of_its_rows(one, two):
    def loss(module, rows, **arguments):
        total, statistics = a2c_loss(module, rows, **arguments)
        rare = rows[col.ADVANTAGES][rows[col.ADVANTAGES] > 0.8]
        return total, {**({"rare": rare.mean()} if len(rare) else {}), **statistics}

    results = []
    for learner in (one, two):
        rows = learner.load(make_batch(), NAMES)
        minibatches = rows.minibatches(1, 2, np.random.default_rng(4))  # a row for each of two
        results.append(learner.update(minibatches, loss, A2C, lr=1e-2))
        assert "rare" not in learner.accumulate(rows.microbatches(2), 1, a2c_loss, A2C, lr=0.0)
    assert results[1] == pytest.approx(results[0], abs=1e-5)
    assert results[0]["rare"] > 0.8


def test_all_learners_stop_early_at_the_same_step(one, two):
    counts = []
    for learner in (one, two):
        rows = learner.load(make_batch(), NAMES)
        statistics = learner.update(
            rows.minibatches(3, 16, np.random.default_rng(4)),
            ppo_loss,
            {**PPO, "kl_coeff": 0.0},
            lr=5e-2,
            stop_early=lambda statistics: float(statistics["approx_kl"]) > 0.01,
        )
        counts.append(statistics["num_updates"])
    assert counts[0] == counts[1]
    assert 0 < counts[0] < 9


def test_a_group_makes_no_steps_of_its_own(two):
    with pytest.raises(TypeError, match=r"update\(\) or accumulate\(\)"):
        two.apply_gradients(0.1)


def test_an_optimizer_that_the_learners_do_not_have_is_refused(two, monkeypatch):
    monkeypatch.setattr(two, "optimizer", object())
    with pytest.raises(TypeError, match=r"needs learners\.num_learners: 0"):
        two.accumulate([], 1, a2c_loss, A2C, lr=0.1)


def test_learners_that_do_not_fit_are_named_with_what_was_found():
    def check(available, **learners):
        preflight(EnvRunnersConfig(), available, learners=LearnersConfig(**learners))

    with pytest.raises(ResourceError) as caught:
        check(Resources(cpus=4), num_learners=2, num_gpus_per_learner=1)
    assert str(caught.value) == (
        "2 learners with 1 GPUs each need 2 GPUs, but this machine has 0: "
        "set learners.num_gpus_per_learner=0"
    )
    with pytest.raises(ResourceError, match=r"num_learners=2 or .*num_gpus_per_learner=0.25"):
        check(Resources(cpus=4, gpus=1), num_learners=4, num_gpus_per_learner=0.5)
    check(Resources(cpus=4, gpus=1), num_learners=4, num_gpus_per_learner=0.25)
    runners = EnvRunnersConfig(num_env_runners=2, num_cpus_per_env_runner=1)
    with pytest.raises(ResourceError, match="this machine has 3, of which the env runners take 2"):
        preflight(runners, Resources(cpus=3), learners=LearnersConfig(num_learners=2))


@pytest.mark.parametrize(
    ("algorithm", "learners", "message"),
    [
        ("PPO", {"num_gpus_per_learner": 1.0}, "set num_learners"),
        ("PPO", {"num_learners": 1, "num_gpus_per_learner": 2.0}, "at most one GPU"),
        ("DQN", {"num_learners": 2}, "DQN learns in one process"),
    ],
)
def test_settings_that_cannot_be_are_refused(algorithm, learners, message):
    config = type("Config", (PPOConfig,), {"algorithm": algorithm})()
    with pytest.raises(ConfigError, match=message):
        config.environment("CartPole-v1").resources(**learners).experiment()


@pytest.mark.learning  # four processes that import torch
def test_ppo_with_two_learners_trains_as_with_one(local_ray):
    def trained(**learners):
        algorithm = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
            .training(train_batch_size=256, minibatch_size=64, num_epochs=2)
            .resources(device="cpu", **learners)
            .debugging(seed=1)
            .build()
        )
        rows = [algorithm.train() for _ in range(2)]
        state, weights = algorithm.get_state(), algorithm.get_weights()
        algorithm.train()
        after = algorithm.get_weights()
        algorithm.set_weights(weights)
        algorithm.set_state(state)
        algorithm.train()
        for name, value in algorithm.get_weights().items():
            np.testing.assert_array_equal(value, after[name])
        algorithm.stop()
        return rows[0]["learners"]["default_policy"]["learner_stats"], weights

    (alone, weights) = trained()
    (together, others) = trained(num_learners=2, num_cpus_per_learner=0.1)
    assert together == pytest.approx(alone, abs=1e-4)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, atol=1e-3)


def killed_once(path, rank):
    """A loss that kills one learner in its third call, but for the first of these processes."""
    calls = []

    def deadly(module, rows, **arguments):  # a local function travels by value
        calls.append(None)
        if torch.distributed.get_rank() == rank and len(calls) == 3 and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ppo_loss(module, rows, **arguments)

    return deadly


def updated(group, loss):
    rows = group.load(make_batch(), NAMES)
    statistics = group.update(
        rows.minibatches(3, 16, np.random.default_rng(4)), loss, {**PPO, "kl_coeff": 0.0}, lr=1e-2
    )
    return statistics, group.get_weights().tobytes(), repr(group.get_state()["optimizer"])


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_learner_is_started_again_and_changes_no_number(one, two, tmp_path, caplog, rank):
    """In the middle of an update, whose first steps the other learner has made."""
    updated(two, ppo_loss)  # so that there is more to restore than a new learner has
    start = two.named_weights(), two.get_state()
    expected = updated(two, ppo_loss)
    two.load_named_weights(start[0])
    two.set_state(start[1])
    restarts = two.num_restarts
    assert updated(two, killed_once(tmp_path / "killed", rank)) == expected
    assert two.num_restarts == restarts + 1
    assert caplog.text.count(f"learner {rank} died") == 1


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("method", ["update", "accumulate"])
def test_a_loss_that_raises_in_one_learner_ends_the_run_at_once(local_ray, method, rank):
    def failing(module, rows, **arguments):
        """Raises in one learner; a local function travels by value."""
        if torch.distributed.get_rank() == rank:
            raise ValueError("of a loss")
        return a2c_loss(module, rows, **arguments)

    group = LearnerGroup(make_module(), TRAINING, TWO)
    rows = group.load(make_batch(), NAMES)
    if method == "update":
        step = partial(group.update, rows.minibatches(1, 16, np.random.default_rng(4)))
    else:
        step = partial(group.accumulate, rows.microbatches(16), rows.size)
    began = time.monotonic()
    with pytest.raises(ValueError, match="of a loss") as caught:
        step(failing, A2C, lr=0.1)
    assert "in failing" in user_traceback(caught.value)
    assert time.monotonic() - began < 300  # the other learner would wait for ten minutes


@pytest.mark.faults
def test_lost_learners_without_one_left_or_a_restart_and_a_loss_that_raises_end_the_run(local_ray):
    def deadly(module, rows, **arguments):
        """Kills learners; a local function travels by value."""
        if torch.distributed.get_rank() in arguments.pop("ranks"):
            os.kill(os.getpid(), signal.SIGKILL)
        return a2c_loss(module, rows, **arguments)

    for settings, ranks in ((TWO, [0, 1]), (NO_RESTARTS, [1])):
        group = LearnerGroup(make_module(), TRAINING, settings)
        rows = group.load(make_batch(), NAMES)
        arguments = {**A2C, "ranks": ranks}
        with pytest.raises(LearnersError, match=f"learner {ranks[0]} died"):
            group.accumulate(rows.microbatches(None), rows.size, deadly, arguments, lr=0.1)
    group = LearnerGroup(make_module(), TRAINING, TWO)
    with pytest.raises(TypeError, match="entropy_coeff"):
        group.accumulate(rows.microbatches(None), rows.size, a2c_loss, {}, lr=0.1)

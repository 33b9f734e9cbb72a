"""The learner's loop over a hand-made batch: no environment, no Ray."""

import platform
import re
import resource

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.problems import ConfigError
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.view_requirement import ViewRequirement
from rlrun.learning import learner as learner_module
from rlrun.learning.learner import Learner
from rlrun.learning.machine import resolve_device
from rlrun.learning.process_group import part_of_rank
from rlrun.policies.catalog import build_module

OBS_SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)


def make_learner(activation="tanh", **training):
    torch.manual_seed(0)
    model = ModelConfig(hidden=(8,), activation=activation)
    module = build_module(OBS_SPACE, gym.spaces.Discrete(2), model)
    return Learner(module, TrainingConfig(**training), LearnersConfig(device="cpu"))


def make_batch(rows=10):
    rng = np.random.default_rng(0)
    storage = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    batch = SampleBatch({col.ACTIONS: np.arange(rows), col.REWARDS: np.ones(rows, np.float32)})
    batch.set_shared(col.OBS, storage, np.arange(rows))
    batch.set_shared(col.NEXT_OBS, storage, np.arange(1, rows + 1))
    return batch


def squared_values(module, rows):
    loss = module.compute_values(rows).square().mean()
    return loss, {"loss": loss.detach()}


@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_minibatches_partition_the_batch_in_every_epoch(size):
    rows = make_learner().load(make_batch(10), (col.ACTIONS,))
    minibatches = list(rows.minibatches(3, size, np.random.default_rng(0)))
    seen = np.concatenate([rows[col.ACTIONS] for rows in minibatches])
    per_epoch = seen.reshape(3, 10)
    for epoch in per_epoch:
        assert sorted(epoch.tolist()) == list(range(10))
    if size < 10:
        assert per_epoch[0].tolist() != per_epoch[1].tolist()


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_a_batch_moves_to_another_device_as_a_whole(activation):
    """Of arrays, which closed forms take, as well as of tensors."""
    here = make_learner(activation).load(make_batch(10), (col.ACTIONS,))
    here.add("again", here.columns[col.ACTIONS])
    kind = np.ndarray if activation == "tanh" else torch.Tensor
    for device in ("cpu", "meta"):
        batch = here.to(torch.device(device))
        columns = batch.storage, batch.obs_index, batch.next_obs_index, *batch.columns.values()
        if device == "cpu":
            assert {type(column) for column in columns} == {kind}
        else:
            assert {column.device.type for column in columns} == {device}
        assert batch.columns["again"] is batch.columns[col.ACTIONS]


def test_rows_keep_their_observations():
    batch = make_batch(10)
    for rows in (
        make_learner().load(batch, (col.ACTIONS,)).minibatches(1, 4, np.random.default_rng(0))
    ):
        np.testing.assert_array_equal(rows[col.OBS], batch[col.OBS][rows[col.ACTIONS]])


def test_views_that_are_not_acted_on_are_loaded_for_losses_where_they_are_numbers():
    module = build_module(OBS_SPACE, gym.spaces.Discrete(2), ModelConfig(hidden=(8,)))
    module.view_requirements |= {
        "later": ViewRequirement("rewards", shift=1),
        "unused": ViewRequirement("rewards", shift=2, used_for_training=False),
        "told": ViewRequirement("infos", shift=1),
    }
    learner, batch = Learner(module, TrainingConfig(), LearnersConfig(device="cpu")), make_batch(4)
    batch["later"], batch["unused"] = np.arange(4.0), np.zeros(4)
    batch["told"] = np.array([{}] * 4, object)
    assert learner.load(batch, (col.ACTIONS,)).columns.keys() == {col.ACTIONS, "later"}


@pytest.mark.parametrize("how", ["global_norm", "norm", "value"])
def test_gradients_are_bounded_as_asked(how):
    learner = make_learner(grad_clip=1e-3, grad_clip_by=how)
    total, _ = squared_values(learner.module, {col.OBS: torch.ones(4, 3)})
    (100 * total).backward()
    norm = learner.apply_gradients(lr=0.0)
    assert isinstance(norm, float), "on the CPU a tensor takes longer"
    grads = learner.parameters.grads
    if how == "global_norm":
        assert float(grads.norm()) == pytest.approx(1e-3, rel=1e-3)
    elif how == "value":
        assert float(grads.abs().max()) == pytest.approx(1e-3)
    else:
        norms = [float(p.grad.norm()) for p in learner.module.parameters()]
        assert max(norms) <= 1e-3 * 1.001


@pytest.mark.parametrize("how", ["global_norm", "norm", "value"])
def test_gradients_within_the_bound_are_left_alone(how):
    learner = make_learner(grad_clip=1e3, grad_clip_by=how)
    squared_values(learner.module, {col.OBS: torch.ones(4, 3)})[0].backward()
    before = learner.parameters.grads.clone()
    learner.apply_gradients(lr=0.0)
    assert before.any()
    assert torch.equal(learner.parameters.grads, before)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("most", [1e-7, 1.0])
def test_the_norm_of_small_gradients_is_bounded_as_by_torch(most, on_cpu):
    learner = make_learner(grad_clip=most)
    if not on_cpu:
        learner.parameters._arrays = None  # parameters of another device have no arrays
    grads = learner.parameters.grads
    grads.normal_(std=1e-7, generator=torch.Generator().manual_seed(0))
    alike = torch.nn.Parameter(grads.clone())
    alike.grad = grads.clone()
    torch.nn.utils.clip_grad_norm_(alike, most)
    learner.apply_gradients(lr=0.0)
    torch.testing.assert_close(grads, alike.grad, rtol=1e-5, atol=0.0)


def test_stopping_early_takes_no_further_step():
    learner = make_learner()
    before = learner.get_weights()
    statistics = learner.update(
        learner.load(make_batch(), ()).minibatches(5, 5, np.random.default_rng(0)),
        squared_values,
        {},
        lr=0.1,
        stop_early=lambda statistics: True,
    )
    np.testing.assert_array_equal(learner.get_weights(), before)
    assert statistics == {"num_updates": 0.0}


def run_updates(learner, count, seed):
    for i in range(count):
        minibatches = learner.load(make_batch(), ()).minibatches(
            2, 4, np.random.default_rng(seed + i)
        )
        learner.update(minibatches, squared_values, {}, lr=0.01)


def test_state_round_trip_continues_to_the_bit():
    straight = make_learner()
    run_updates(straight, 4, seed=0)
    first = make_learner()
    run_updates(first, 2, seed=0)
    resumed = make_learner()
    resumed.load_named_weights(first.named_weights())
    resumed.set_state(first.get_state())
    run_updates(resumed, 2, seed=2)
    np.testing.assert_array_equal(resumed.get_weights(), straight.get_weights())


def test_a_batch_is_moved_once_and_its_storage_not_repeated():
    batch = make_batch(10)
    rows = make_learner().load(batch, (col.ACTIONS,))
    assert rows.storage.shape == (11, 3)  # T + 1 observations, not 2 T


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"learners\.device.*no CUDA device"):
        Learner(
            build_module(OBS_SPACE, gym.spaces.Discrete(2), ModelConfig()),
            TrainingConfig(),
            LearnersConfig(device="cuda"),
        )


def test_a_gpu_without_a_number_is_the_first_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert {resolve_device(name).type for name in ("auto", "cuda", "cuda:0")} == {"cuda"}
    with pytest.raises(ConfigError, match="'cuda:1' asked for, but torch sees 1 CUDA device;"):
        resolve_device("cuda:1")


def test_statistics_are_reduced_by_their_names_and_nan_is_left_out():
    """Over four minibatches of one row, and over four microbatches of one step."""
    nan, learner = float("nan"), make_learner()
    rows = learner.load(make_batch(4), (col.ACTIONS,))

    def loss(module, rows):
        x = rows[col.ACTIONS].float().mean()
        total = module.compute_values(rows).square().mean()
        by_name = {"x": x, "min_x": x, "max_x": x, "some": torch.where(x > 1, x, nan)}
        return total, {**by_name, "min_some": by_name["some"], "none": x * nan, "max_none": x * nan}

    minibatches = rows.minibatches(1, 1, np.random.default_rng(0))
    found = learner.update(minibatches, loss, {}, lr=1e-3)
    assert {name: found[name] for name in ("x", "min_x", "max_x", "some", "min_some")} == {
        **{"x": 1.5, "min_x": 0.0, "max_x": 3.0},
        **{"some": 2.5, "min_some": 2.0},
    }
    assert np.isnan([found["none"], found["max_none"]]).all()
    found = learner.accumulate(rows.microbatches(1), 4, loss, {}, lr=1e-3)
    assert [found[name] for name in ("x", "min_x", "max_x")] == [1.5, 0.0, 3.0]


@pytest.mark.parametrize(
    ("name", "mine", "says"),
    [
        ("mine", torch.ones(2), "statistic 'mine' must be one number, not "),
        ("mine", np.ones((1, 2)), "statistic 'mine' must be one number, not "),
        ("mine", [1.0, 2.0], "statistic 'mine' must be one number, not "),
        ("mine", "high", "statistic 'mine' must be one number, not 'high'"),
        ("mine", {"a": 1.0}, "statistic 'mine' must be one number, not {'a': 1.0}"),
        (None, 1.0, "the name of a statistic must be text, not None"),
    ],
)
def test_a_statistic_that_is_no_single_number_is_named(name, mine, says):
    learner = make_learner()
    rows = learner.load(make_batch(5), (col.ACTIONS,))

    def loss(module, rows):
        return module.compute_values(rows).square().mean(), {name: mine}

    with pytest.raises(ValueError, match=re.escape(says)):
        learner.accumulate(rows.microbatches(2), 5, loss, {}, lr=1e-3)
    with pytest.raises(ValueError, match=re.escape(says)):
        learner.update(rows.minibatches(1, 2, np.random.default_rng(0)), loss, {}, lr=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda total: total, "not a tensor of shape ()"),
        (lambda total: None, "not None"),
        (lambda total: (total.expand(4), {}), "not a tensor of shape (4,) and a dict"),
        (
            lambda total: (total.detach(), {}),
            "not a tensor of shape () without gradient and a dict",
        ),
    ],
)
def test_what_a_loss_must_return_is_said(change, says):
    learner = make_learner()
    rows = learner.load(make_batch(4), (col.ACTIONS,))

    def mine(module, rows):
        return change(module.compute_values(rows).square().mean())

    with pytest.raises(TypeError) as raised:
        learner.accumulate(rows.microbatches(None), 4, mine, {}, lr=1e-3)
    assert "the loss test_what_a_loss_must_return_is_said.<locals>.mine must" in str(raised.value)
    assert str(raised.value).endswith(says)


def test_the_loss_itself_may_be_among_its_statistics():
    learner = make_learner()
    rows = learner.load(make_batch(4), (col.ACTIONS,))

    def loss(module, rows):
        total = module.compute_values(rows).square().mean()
        return total, {"total_loss": total}

    found = learner.update(rows.minibatches(1, 2, np.random.default_rng(0)), loss, {}, lr=1e-3)
    assert found["total_loss"] > 0


def test_a_statistic_of_some_microbatches_is_the_mean_of_their_rows():
    learner = make_learner()
    rows = learner.load(make_batch(5), (col.ACTIONS,))

    def loss(module, rows):
        mean = rows[col.ACTIONS].float().mean()
        some = {"some": mean} if mean > 1 else {}
        return squared_values(module, rows)[0], {"mean": mean, **some}

    found = learner.accumulate(rows.microbatches(2), 5, loss, {}, lr=1e-3)  # 0 1, 2 3, 4
    assert found["mean"] == pytest.approx(2.0)
    assert found["some"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("space", "num_threads", "expected"),
    [
        (OBS_SPACE, None, [1]),  # more would wait for each other
        (OBS_SPACE, 3, [3]),
        (gym.spaces.Box(0, 255, (2, 16, 16), np.uint8), None, []),  # torch decides
    ],
)
def test_learning_takes_as_many_threads_as_asked_for(space, num_threads, expected, monkeypatch):
    module, asked = build_module(space, gym.spaces.Discrete(2), ModelConfig()), []
    monkeypatch.setattr(learner_module, "set_num_threads", asked.append)
    Learner(module, TrainingConfig(), LearnersConfig(device="cpu", num_threads=num_threads))
    assert asked == expected


@pytest.mark.parametrize("space", [OBS_SPACE, gym.spaces.Box(0, 255, (2, 16, 16), np.uint8)])
def test_freed_memory_is_kept_on_the_cpu(space, monkeypatch):
    module, asked = build_module(space, gym.spaces.Discrete(2), ModelConfig()), []
    monkeypatch.setattr(learner_module, "keep_freed_memory", lambda: asked.append(space))
    Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))
    assert asked == [space]


def test_weights_that_are_loaded_into_the_module_are_what_is_learned_and_acted_with():
    """Where torch is asked to exchange the parameters as well."""
    learner, other = make_learner(), make_learner()
    with torch.no_grad():
        other.parameters.vector.add_(0.5)
    rows = next(iter(learner.load(make_batch(4), (col.ACTIONS,)).microbatches(None)))
    for one in (learner, other):
        one.update([rows], squared_values, {}, lr=1e-3)
    learner.module.load_state_dict(other.module.state_dict(), assign=True)
    learner.set_state(other.get_state())
    learner.parameters.check_valid()
    for one in (learner, other):
        one.update([rows], squared_values, {}, lr=1e-3)
    np.testing.assert_array_equal(learner.get_weights(), other.get_weights())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep memory")
@pytest.mark.parametrize(
    ("space", "num_rows"),
    [(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), 64), (OBS_SPACE, 4096)],
    ids=["images", "wide layers"],
)
def test_an_update_reuses_the_memory_of_the_last_one(space, num_rows):
    torch.manual_seed(0)
    module = build_module(space, gym.spaces.Discrete(2), ModelConfig(hidden=(256, 256)))
    settings = LearnersConfig(device="cpu", num_threads=1)
    learner = Learner(module, TrainingConfig(), settings)
    rows = {col.OBS: torch.from_numpy(np.stack([space.sample() for _ in range(num_rows)]))}

    def page_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        learner.update([rows], squared_values, {}, lr=1e-4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    for _ in range(6):
        page_faults()
    # The heap may grow late, once or twice; without kept memory nearly all updates have thousands.
    assert sum(page_faults() > 500 for _ in range(8)) <= 2


class OneOfThree:
    """A learner's place among three, which passes on what the others would add to."""

    def __init__(self, rank):
        self._rank, self.grads = rank, None

    def part_of(self, rows):
        return part_of_rank(rows, self._rank, 3)

    def all_reduce(self, grads, statistics, weights):
        self.grads = grads.clone()
        return {"share": weights["loss"], **statistics}


def test_shares_of_unequal_parts_add_up_to_the_step_of_the_whole_minibatch():
    learner = make_learner()
    rows = next(iter(learner.load(make_batch(4), (col.ACTIONS,)).microbatches(None)))

    def loss(module, rows):
        total, statistics = squared_values(module, rows)
        return total, {**statistics, "max_action": rows[col.ACTIONS].float().max()}

    whole = learner.update([rows], loss, {}, lr=0.0)
    grads = learner.parameters.grads.clone()
    places, found = [OneOfThree(rank) for rank in range(3)], []
    for learner.group in places:
        found.append(learner.update([rows], loss, {}, lr=0.0))
    assert sorted(one["max_action"] for one in found) == [1.0, 2.0, 3.0]
    assert sum(one["share"] * one["loss"] for one in found) == pytest.approx(whole["loss"])
    torch.testing.assert_close(sum(place.grads for place in places), grads)

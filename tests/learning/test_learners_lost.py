"""What a group does about lost learners, with stand-ins for them in this process, without Ray.

The stand-ins of `Hosts` count the updates that they make; tests/learning/test_learner_group.py has
learners that learn, and real processes that die.
"""

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayError

from rlrun.actors.actor_manager import CallResult
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.learning.learner_group import LearnerGroup, LearnersError
from rlrun.learning.process_group import LostPeerError
from rlrun.policies.catalog import build_module

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


class Host:
    """Stands in for a `LearnerHost`: its state is how many updates it has made."""

    def __init__(self, rank):
        self.rank, self.updates, self.before, self.group, self.seeds = rank, None, None, None, []

    def process_id(self):
        return self.rank

    def open_store(self):
        return self

    def build(self, module, training, settings):
        self.updates, self.num_parameters = 0, sum(p.numel() for p in module.parameters())

    def join(self, store, state=None):
        assert self.updates is not None, "a learner joins before it is built"
        self.group = store
        if state is not None:
            self.updates = state

    def begin(self, seed):
        self.before = self.updates
        self.seeds.append(seed)

    def state(self, before=False):
        return self.before if before else self.updates

    def update(self, *arguments):
        self.updates += 1
        weights = np.full(self.num_parameters, self.updates, np.float32)
        rng_state = np.random.default_rng(self.updates).bit_generator.state
        return {"num_updates": float(self.updates)}, weights if self.rank == 0 else None, rng_state

    def call(self, method, *arguments):
        return {"updates": self.updates}


class Hosts:
    """Stands in for the actor manager.

    ``lost`` says which ranks do not survive which call of a method, counted from 1; ``raised``
    what they raise in it; ``late`` in which they give no answer.
    """

    lost, raised, late = {}, {}, {}

    def __init__(self, factory, num_actors, *, max_restarts, first_id):
        assert first_id == 0
        self.max_restarts, self.restarts = max_restarts, Counter()
        self.actor_ids = list(range(num_actors))
        self.hosts = {rank: Host(rank) for rank in self.actor_ids}
        self.gone, self.calls, self.stopped, self.limits = set(), Counter(), False, {}
        Hosts.made = self

    num_restarts = property(lambda self: self.restarts.total())

    def foreach_actor(self, method, *arguments, actor_ids=None, timeout_s=None):
        self.calls[method] += 1
        self.limits.setdefault(method, []).append(timeout_s)
        key, results = (method, self.calls[method]), []
        for rank in self.actor_ids if actor_ids is None else actor_ids:
            if rank in self.gone or rank in self.late.get(key, ()):
                continue
            if rank in self.lost.get(key, ()):
                self.gone.add(rank)
                error = RayError("Long story. Worker exit detail: killed. Some common causes ...")
                results.append(CallResult(rank, error=error, actor_failed=True))
                continue
            value = getattr(self.hosts[rank], method)(*arguments)
            error = self.raised.get(key, {}).get(rank)
            results.append(CallResult(rank, value=value, error=error))
        return results

    def can_restart(self, rank):
        return self.restarts[rank] < self.max_restarts

    def restart(self, *ranks):
        for rank in ranks:
            self.restarts[rank] += 1
            self.hosts[rank] = Host(rank)
            self.gone.discard(rank)

    def stop(self):
        self.stopped = True


class Nothing:
    """Stands in for minibatches."""

    rng = np.random.default_rng(0)

    def to(self, device):
        return self


@pytest.fixture
def make(monkeypatch):
    """A group of learners, and what becomes of them."""
    monkeypatch.setattr("rlrun.actors.actor_manager.FaultTolerantActorManager", Hosts)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.5})

    def made(*, lost=None, raised=None, late=None, **settings):
        monkeypatch.setattr(Hosts, "lost", lost or {})
        monkeypatch.setattr(Hosts, "raised", raised or {})
        monkeypatch.setattr(Hosts, "late", late or {})
        module = build_module(BOX, gym.spaces.Discrete(2), ModelConfig(hidden=(4,)))
        settings = LearnersConfig(device="cpu", **{"num_learners": 3, **settings})
        return LearnerGroup(module, TrainingConfig(), settings)

    return made


def update(group):
    return group.update(Nothing(), None, {}, lr=0.1)


@pytest.mark.parametrize(
    ("lost", "restarts"),
    [
        ({}, 0),
        ({("update", 2): [1]}, 1),
        ({("update", 2): [0]}, 1),
        ({("update", 2): [0, 2]}, 2),
        ({("update", 2): [1], ("update", 3): [1]}, 2),
        ({("begin", 2): [2]}, 1),
        ({("update", 2): [1], ("state", 1): [0]}, 2),
        ({("update", 2): [1], ("build", 2): [1]}, 2),
        ({("update", 2): [1], ("open_store", 2): [0]}, 2),
        ({("update", 2): [1], ("join", 2): [2]}, 2),
        ({("get_state", 1): [1]}, 0),
        ({("call", 1): [0]}, 1),
    ],
)
def test_learners_are_lost_at_any_moment_and_all_have_made_each_update_once(make, lost, restarts):
    group = make(lost=lost)
    for count in (1, 2, 3):
        assert update(group) == {"num_updates": count}
        assert (group.get_weights() == count).all()
    assert group.get_state() == {"updates": 3, "num_restarts": restarts}
    hosts = Hosts.made.hosts
    assert [host.updates for host in hosts.values()] == [3, 3, 3]
    assert all(host.group is hosts[0] for host in hosts.values())
    assert group.num_restarts == restarts
    assert not Hosts.made.stopped


def test_restarts_are_counted_from_the_start_of_a_run_that_is_resumed(make):
    first = make(lost={("update", 1): [1]})
    update(first)
    resumed = make(lost={("update", 1): [2]})
    resumed.set_state(first.get_state())
    update(resumed)
    assert resumed.num_restarts == 2
    resumed.set_state(first.get_state())  # from that point once more
    assert resumed.num_restarts == 1
    resumed.set_state({"updates": 3})  # of a single learner, or of an older checkpoint
    assert resumed.num_restarts == 0


def test_an_update_that_is_repeated_draws_the_same_random_numbers(make):
    group = make(lost={("update", 2): [1]})
    for _ in range(3):
        update(group)
    first, second, again, third = Hosts.made.hosts[0].seeds
    assert again == second
    assert len({first, second, third}) == 3
    assert max(first, second, third) < 2**32


def test_updates_draw_numbers_that_the_seed_decides(make):
    seeds = []
    for _ in range(2):
        group = make()
        torch.manual_seed(5)
        update(group)
        seeds.append(Hosts.made.hosts[0].seeds)
    assert seeds[0] == seeds[1]


@pytest.mark.parametrize(
    ("lost", "settings", "message"),
    [
        ([0, 1, 2], {}, "learner 0 died: killed."),
        ([1], {"max_num_learner_restarts": 0}, "learner 1 died: killed."),
    ],
)
def test_without_a_state_or_a_restart_left_the_run_ends(make, lost, settings, message):
    for call in (update, lambda group: group.set_state({})):
        group = make(lost={("update", 1): lost, ("call", 1): lost}, **settings)
        with pytest.raises(LearnersError) as caught:
            call(group)
        assert str(caught.value) == message
        assert Hosts.made.stopped


def test_as_many_learners_are_started_again_as_the_settings_allow(make):
    lost = {("update", number): [1] for number in (1, 2, 3)}
    group = make(lost=lost, max_num_learner_restarts=2)
    with pytest.raises(LearnersError, match="learner 1 died"):
        update(group)
    assert group.num_restarts == 2


WAITED = {0: LostPeerError("closed"), 1: LostPeerError("closed")}


@pytest.mark.parametrize("others", [{}, WAITED])
@pytest.mark.parametrize("lost", [[], [1]])
def test_a_loss_that_raises_ends_the_run_with_its_own_error(make, lost, others):
    raised = {("update", 1): {2: ValueError("of a loss"), **others}}
    group = make(lost={("update", 1): lost}, raised=raised)
    with pytest.raises(ValueError, match="of a loss"):
        update(group)
    assert Hosts.made.stopped
    assert group.num_restarts == 0


def test_errors_of_learners_that_waited_for_a_lost_one_are_passed_over(make):
    lost, raised = {("update", 1): [2]}, {("update", 1): WAITED}
    assert update(make(lost=lost, raised=raised)) == {"num_updates": 1}
    group = make(lost=lost, raised=raised, max_num_learner_restarts=0)
    with pytest.raises(LearnersError, match="learner 2 died"):
        update(group)


def test_a_learner_that_does_not_answer_while_others_are_replaced_is_replaced(make, caplog):
    group = make(lost={("update", 1): [1]}, late={("join", 2): [2]})
    assert update(group) == {"num_updates": 1}
    assert group.num_restarts >= 2
    assert "A learner did not answer within 120 s." in caplog.text
    replacing = [
        limits[1] for limits in map(Hosts.made.limits.get, ("build", "open_store", "join"))
    ]
    assert replacing == [120.0] * 3


def test_learners_that_cannot_be_started_are_counted_with_what_is_free(make):
    settings = {"num_cpus_per_learner": 2, "num_gpus_per_learner": 0.5}
    with pytest.raises(LearnersError) as caught:
        make(late={("process_id", 1): [1, 2]}, **settings)
    assert str(caught.value) == (
        "1 of 3 learners (learners.num_learners) could be started within 120 s. "
        "Each needs 2 CPUs and 0.5 GPUs; available are 1.5 CPUs and 0 GPUs"
    )
    assert Hosts.made.stopped
    assert Hosts.made.limits["process_id"] == [120.0]

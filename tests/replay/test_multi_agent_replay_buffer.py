"""A buffer for each policy; in lockstep, all policies' transitions of the same env steps."""

import numpy as np
import pytest
from experience import GAMMA, Experience, assert_equal_batches, assert_returns
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.data.sample_batch import MultiAgentBatch
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer


def test_a_sample_of_no_policies_is_empty():
    batch = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(9)).sample(4, None, policies=[])
    assert (batch.policy_batches, batch.count) == ({}, 0)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 4),
    num_agents=st.integers(1, 4),
    capacity=st.integers(1, 60),
    n_step=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=10),
    kind=st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer]),
    shared=st.booleans(),
)
def test_returns_go_along_an_agents_steps_to_their_end_and_not_across_the_rings_edge(
    seed, num_envs, num_agents, capacity, n_step, lengths, kind, shared
):
    experience = Experience(seed, num_envs, num_agents)
    buffer = MultiAgentReplayBuffer(lambda policy_id: kind(capacity, n_step=n_step, gamma=GAMMA))
    for length in lengths:
        buffer.add(experience.batches(length, shared=shared))
        for policy_id, held in buffer.buffers.items():
            held.check_valid()
            rows = experience.rows[policy_id]
            assert held.num_added == len(rows)
            assert len(held) == min(len(rows), capacity)
            sample = held.sample(32, experience.rng)
            assert sample[col.ITEM_IDS].min() >= len(rows) - len(held)
            assert_returns(sample, rows, n_step)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_agents=st.integers(2, 4),
    capacity=st.integers(30, 90),
    n_step=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
@example(seed=0, num_agents=3, capacity=30, n_step=1, lengths=[1, 4, 1, 4, 5, 2, 1])
def test_lockstep_brings_all_transitions_of_the_env_steps_drawn_also_after_a_restore(
    seed, num_agents, capacity, n_step, lengths
):
    def make(policy_id):
        return ReplayBuffer(capacity, n_step=n_step, gamma=GAMMA)

    experience = Experience(seed, 2, num_agents)
    buffer, resumed = (MultiAgentReplayBuffer(make, mode="lockstep") for _ in range(2))
    for length in lengths:
        buffer.add(experience.batches(length))
        if not buffer.buffers:
            continue
        batch = buffer.sample(5, experience.rng)
        assert len(batch) == 5
        steps = set()
        for policy_id, drawn in batch.policy_batches.items():
            rows = experience.rows[policy_id]
            assert_returns(drawn, rows, n_step)
            steps |= {(rows[i].episode, rows[i].t) for i in drawn[col.ITEM_IDS].tolist()}
        assert 1 <= len(steps) <= 5
        for policy_id, rows in experience.rows.items():
            wanted = {i for i, row in enumerate(rows) if (row.episode, row.t) in steps}
            found = batch[policy_id][col.ITEM_IDS].tolist() if policy_id in batch else []
            assert set(found) == wanted
    resumed.set_state(buffer.get_state())
    for _ in range(2):
        more = experience.batches(4)
        for each in (buffer, resumed):
            each.add(more)
        if buffer.buffers:
            one, other = (each.sample(6, np.random.default_rng(seed)) for each in (buffer, resumed))
            for policy_id in {*one, *other}:
                assert_equal_batches(one[policy_id], other[policy_id])


def test_old_env_steps_make_room_as_a_whole():
    experience = Experience(0, 1, 2)
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(12), mode="lockstep")
    for _ in range(30):
        buffer.add(experience.batches(4))
    drawn = buffer.sample(500, np.random.default_rng(0)).policy_batches
    for policy_id, rows in drawn.items():
        held = buffer.buffers[policy_id]
        assert rows[col.ITEM_IDS].min() >= held.num_added - len(held)
    assert sum(len(set(rows[col.ITEM_IDS].tolist())) for rows in drawn.values()) > 12


def test_lockstep_refuses_a_batch_that_it_cannot_hold_as_a_whole():
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(5), mode="lockstep")
    with pytest.raises(ValueError, match="in lockstep it must hold a round"):
        buffer.add(Experience(0, 2, 3).batches(30))
    of_some = Experience(3, 1, 5).batches(4)  # more rows than room for one of two policies
    rows = [len(part) for part in of_some.policy_batches.values()]
    assert min(rows) <= 5 < max(rows)
    with pytest.raises(ValueError, match=r"4 env steps .* set it to \d+ or more"):
        buffer.add(of_some)
    with pytest.raises(ValueError, match="neither independent nor lockstep"):
        MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(5), mode="both")


def test_lockstep_holds_a_batch_of_as_many_env_steps_as_there_is_room_for():
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(5), mode="lockstep")
    buffer.add(Experience(0, 1).batches(5))
    rows = buffer.sample(100, np.random.default_rng(0))["a"]
    assert set(rows[col.ITEM_IDS].tolist()) == set(range(5))


def test_lockstep_holds_as_many_env_steps_as_the_largest_buffer_has_room_for():
    buffer = MultiAgentReplayBuffer(
        lambda policy_id: ReplayBuffer(5 if policy_id == "a" else 2), mode="lockstep"
    )
    batch = Experience(0, 1).batches(5)["a"]
    buffer.add(MultiAgentBatch({"a": batch, "b": batch.slice(3, 5)}, 5))
    rows = buffer.sample(100, np.random.default_rng(0))["a"]
    assert set(rows[col.ITEM_IDS].tolist()) == set(range(5))


def test_lockstep_knows_the_env_steps_of_each_of_many_policies():
    experience, buffer = (
        Experience(0),
        MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(50), mode="lockstep"),
    )
    batch = experience.batch(4)
    rows = {"p": batch, "q": batch, "r": batch}
    buffer.add(MultiAgentBatch(rows, 8))
    drawn = buffer.sample(1, np.random.default_rng(0)).policy_batches
    assert len({tuple(rows[col.ITEM_IDS].tolist()) for rows in drawn.values()}) == 1


def test_lockstep_goes_on_without_a_policy_that_was_dropped():
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(50), mode="lockstep")
    experience = Experience(0, 2, 3)
    buffer.add(experience.batches(9))
    buffer.forget("a")
    for _ in range(2):
        assert set(buffer.sample(40, np.random.default_rng(0))) == {"b"}
        buffer.add(MultiAgentBatch({"b": experience.batches(9)["b"]}, 9))


def test_each_policy_has_a_buffer_of_its_own():
    def make(policy_id):
        return ReplayBuffer(9 if policy_id == "a" else 50)

    experiences = {"a": Experience(1), "b": Experience(2, num_envs=3)}
    buffer, resumed = MultiAgentReplayBuffer(make), MultiAgentReplayBuffer(make)
    buffer.add(MultiAgentBatch({name: each.batch(4) for name, each in experiences.items()}, 4))
    buffer.add(MultiAgentBatch({"a": experiences["a"].batch(4)}, 4))
    assert {name: len(each) for name, each in buffer.buffers.items()} == {"a": 9, "b": 12}
    assert len(buffer) == 21
    resumed.set_state(buffer.get_state())
    batch, again = (each.sample(7, np.random.default_rng(0)) for each in (buffer, resumed))
    assert set(batch) == {"a", "b"}
    for name in batch:
        known = {(row.obs, row.new_obs) for row in experiences[name].rows["a"]}
        pairs = zip(batch[name][col.OBS][:, 0], batch[name][col.NEXT_OBS][:, 0], strict=True)
        assert {(float(x), float(y)) for x, y in pairs} <= known
        assert_equal_batches(batch[name], again[name])
    assert set(buffer.sample(3, np.random.default_rng(0), policies=["b"])) == {"b"}

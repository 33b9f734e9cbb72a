"""Replay with several agents, against a list of transitions that is searched step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.data.multi_agent_batch import MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer

GAMMA = 0.9


class Team:
    """Agents that are silent now and then, as a runner's fragments have them.

    Observations are numbers, each used for one moment only. Agent i plays policy "ab"[i % 2].
    """

    def __init__(self, seed, agents=3, lanes=2):
        self.rng = np.random.default_rng(seed)
        self.moment, self.fragment = 0.0, 0
        self.time, self.episode = [0] * lanes, list(range(lanes))
        self.waits = {(lane, i): self.now() for lane in range(lanes) for i in range(agents)}
        self.rows = {"a": [], "b": []}  # (episode, agent, t, obs, next_obs, reward, done)

    def now(self):
        self.moment += 1.0
        return self.moment

    def batch(self, length):
        """So many env steps of each lane; rows stand agent after agent."""
        news = {who: [] for who in self.waits}
        for lane in range(len(self.time)):
            for _ in range(length):
                self._step(lane, news)
        batches = {}
        for policy, mine in (("a", 0), ("b", 1)):
            rows = [r for who in sorted(news) if who[1] % 2 == mine for r in news[who]]
            self.rows[policy] += rows
            if rows:
                batches[policy] = self._batch(rows)
        self.fragment += 1
        return MultiAgentBatch(batches, length * len(self.time))

    def _step(self, lane, news):
        over, t = bool(self.rng.random() < 0.1), self.time[lane]
        for (where, agent), obs in list(self.waits.items()):
            if where == lane and (over or self.rng.random() < 0.6):
                following, reward = self.now(), float(self.rng.normal())
                row = (self.episode[lane], agent, t, obs, following, reward, over)
                news[lane, agent].append(row)
                self.waits[lane, agent] = following
        self.time[lane] += 1
        if over:
            self.time[lane], self.episode[lane] = 0, self.episode[lane] + len(self.time)
            for where, agent in self.waits:
                if where == lane:
                    self.waits[where, agent] = self.now()

    def _batch(self, rows):
        episode, agent, t, obs, following, reward, done = map(np.array, zip(*rows, strict=True))
        lane = episode % len(self.time)
        new_piece = np.r_[True, (np.diff(lane) != 0) | (np.diff(agent) != 0)]
        return SampleBatch(
            {
                col.OBS: obs[:, None].astype(np.float32),
                col.NEXT_OBS: following[:, None].astype(np.float32),
                col.ACTIONS: agent,
                col.REWARDS: reward.astype(np.float32),
                col.TERMINATEDS: done,
                col.TRUNCATEDS: np.zeros(len(rows), np.bool_),
                col.EPS_ID: episode,
                col.AGENT_INDEX: agent,
                col.T: t,
                col.UNROLL_ID: np.cumsum(new_piece) - 1 + (self.fragment << 16),
            }
        )


def slow_sample(rows, item, n_step):
    """What the agent did from a transition on, among those that came later."""
    episode, agent, t, obs, following, reward, done = rows[item]
    mine = sorted(r for r in rows if r[:2] == (episode, agent) and r[2] > t)
    total, discount = reward, GAMMA
    for later in mine[: n_step - 1]:
        following, done = later[4], later[6]
        total += discount * later[5]
        discount *= GAMMA
    return obs, following, total, done, discount


def assert_right(batch, rows, n_step):
    names = (col.OBS, col.NEXT_OBS, col.REWARDS, col.TERMINATEDS, col.DISCOUNTS)
    for i, item in enumerate(batch[col.ITEM_IDS].tolist()):
        found = [float(np.ravel(batch[name][i])[0]) for name in names]
        np.testing.assert_allclose(found, slow_sample(rows, item, n_step), rtol=1e-4, atol=1e-5)


cases = given(
    seed=st.integers(0, 2**32 - 1),
    agents=st.integers(1, 4),
    capacity=st.integers(30, 90),
    n_step=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=10),
)


@settings(max_examples=30, deadline=None)
@cases
def test_returns_go_along_what_one_agent_did(seed, agents, capacity, n_step, lengths):
    """However many agents share a policy, and whoever is silent meanwhile."""
    team, rng = Team(seed, agents), np.random.default_rng(seed)
    buffer = MultiAgentReplayBuffer(
        lambda policy_id: ReplayBuffer(capacity, n_step=n_step, gamma=GAMMA)
    )
    for length in lengths:
        buffer.add(team.batch(length))
        for policy_id, held in buffer.buffers.items():
            held.check_valid()
            rows = team.rows[policy_id]
            assert len(held) == min(len(rows), capacity)
            assert_right(held.sample(16, rng), rows, n_step)


@settings(max_examples=30, deadline=None)
@cases
def test_lockstep_brings_all_transitions_of_the_env_steps_drawn(
    seed, agents, capacity, n_step, lengths
):
    def make():
        return MultiAgentReplayBuffer(
            lambda policy_id: ReplayBuffer(capacity, n_step=n_step, gamma=GAMMA), mode="lockstep"
        )

    team, rng, buffer = Team(seed, agents), np.random.default_rng(seed), make()
    for length in lengths:
        buffer.add(team.batch(length))
        if not buffer.buffers:
            continue
        batch = buffer.sample(5, rng)
        assert len(batch) == 5
        steps = set()
        for policy_id, rows in batch.policy_batches.items():
            assert_right(rows, team.rows[policy_id], n_step)
            steps |= {team.rows[policy_id][i][0:3:2] for i in rows[col.ITEM_IDS].tolist()}
        assert 1 <= len(steps) <= 5
        for policy_id, rows in team.rows.items():
            wanted = {i for i, row in enumerate(rows) if row[0:3:2] in steps}
            there = batch[policy_id][col.ITEM_IDS] if policy_id in batch else []
            assert set(np.asarray(there).tolist()) == wanted
    resumed = make()
    resumed.set_state(buffer.get_state())
    for _ in range(2):
        if not buffer.buffers:
            continue
        state = rng.bit_generator.state
        one = buffer.sample(6, rng)
        rng.bit_generator.state = state
        other = resumed.sample(6, rng)
        assert set(one) == set(other)
        for policy_id in one:
            np.testing.assert_array_equal(one[policy_id][col.OBS], other[policy_id][col.OBS])
        more = team.batch(2)
        buffer.add(more)
        resumed.add(more)


def test_old_env_steps_make_room_as_a_whole():
    team = Team(0, agents=2, lanes=1)
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(12), mode="lockstep")
    for _ in range(30):
        buffer.add(team.batch(4))
    drawn = buffer.sample(500, np.random.default_rng(0))
    for policy_id, rows in drawn.policy_batches.items():
        held = buffer.buffers[policy_id]
        assert rows[col.ITEM_IDS].min() >= held.num_added - len(held)
    assert sum(len(set(rows[col.ITEM_IDS].tolist())) for rows in drawn.policy_batches.values()) > 12


def test_lockstep_refuses_what_it_cannot_hold_as_a_whole():
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(5), mode="lockstep")
    with pytest.raises(ValueError, match="does not fit into a buffer of 5"):
        buffer.add(Team(0).batch(30))
    with pytest.raises(ValueError, match="neither independent nor lockstep"):
        MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(5), mode="both")
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(50), mode="lockstep")
    buffer.add(Team(0).batch(9))
    buffer.forget("a")
    assert set(buffer.sample(40, np.random.default_rng(0))) == {"b"}

"""Pieces of several agents: each is shown with those of the others in the same episode."""

import numpy as np
import pytest
from agent_runners import EXAMPLES, MLP, by_agent, make, played, sample
from scripted_agents import EXPECTED, Echo

import rlrun
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import ModelConfig, TrainingConfig, UseSpec
from rlrun.sampling.env_runner import EnvRunner


class Listening(Echo):
    """Notes whose pieces it is shown, and adds the sum of the others' rewards at the same time."""

    def postprocess_trajectory(self, batch, other_agent_batches=None, episode=None):
        self.shown = [*getattr(self, "shown", []), (episode, len(batch), dict(other_agent_batches))]
        assert set(batch["eps_id"]) == {episode}
        at = {int(t): 0.0 for t in batch["t"]}
        for _, _, other in other_agent_batches.values():
            assert set(other["eps_id"]) == {episode}
            for t, reward in zip(other["t"].tolist(), other["rewards"].tolist(), strict=True):
                if t in at:
                    at[t] += reward
        batch["of_others"] = np.array([at[t] for t in batch["t"].tolist()], np.float32)
        return batch


LISTENING = PolicySettings(ModelConfig(), TrainingConfig(), use=f"{__name__}:Listening")
TIMES = {agent: {row[3]: row[2] for row in rows} for agent, rows in EXPECTED.items()}


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
@pytest.mark.parametrize("agents", [{"*": "p"}, {"[ab]": "p", "c": "q"}])
@pytest.mark.parametrize(("mode", "length"), [("truncate_episodes", 7), ("complete_episodes", 5)])
def test_others_are_those_of_the_same_episode(collector, agents, mode, length):
    policies = dict.fromkeys(set(agents.values()), LISTENING)
    more = {"num_envs": 2, "batch_mode": mode, "sample_collector": collector}
    runner = make("scripted_agents:Scripted", policies, agents, **more)
    rows = by_agent([sample(runner, k, length).batch for k in range(2)])
    for env_index in range(2):
        for index, agent in enumerate("abc"):
            assert played(rows[env_index, 0, index]) == EXPECTED[agent]
            for row in rows[env_index, 0, index]:
                others = sum(
                    rewards.get(row["t"], 0.0) for name, rewards in TIMES.items() if name != agent
                )
                assert row["of_others"] == others
    shown = [others for actor in runner.actors.values() for *_, others in actor.policy.shown]
    assert {frozenset(others) for others in shown} == {
        frozenset("bc"),
        frozenset("ac"),
        frozenset("ab"),
    }
    for others in shown:
        for agent, (policy_id, policy, original) in others.items():
            assert policy_id == (agents.get(agent) or agents.get("*") or "p")
            assert policy is runner.actors[policy_id].policy
            assert "of_others" not in original


def test_fragments_cut_pieces_of_all_agents():
    runner = make("scripted_agents:Scripted", {"p": LISTENING})
    sample(runner, 0, 3)
    # Agent b is silent until 3, and c has not come.
    shown = runner.actors["p"].policy.shown
    assert [(rows, set(others)) for _, rows, others in shown] == [(3, {"b"}), (1, {"a"})]


class CentralCritic(rlrun.Callbacks):
    """What a critic that sees everybody needs: the others' observations beside one's own."""

    def on_postprocess_trajectory(
        self,
        *,
        worker,
        episode,
        agent_id,
        policy_id,
        policies,
        postprocessed_batch,
        original_batches,
        **kwargs,
    ):
        assert isinstance(worker, EnvRunner)
        own_id, policy, original = original_batches[agent_id]
        assert own_id == policy_id
        assert policies[policy_id] is policy is worker.actors[policy_id].policy
        batch, width = postprocessed_batch, original["obs"].shape[1]
        assert "central_obs" not in original
        seen = np.zeros((len(batch), 2 * width), np.float32)
        seen[:, :width] = batch["obs"]
        for name, (_, _, other) in original_batches.items():
            if name != agent_id:
                _, mine, its = np.intersect1d(batch["t"], other["t"], return_indices=True)
                seen[mine, width:] = other["obs"][its]
        batch["central_obs"] = seen


def test_a_centralised_critic_sees_what_the_other_saw_in_the_same_step():
    spec = {"postprocessors": (UseSpec(use=f"{__name__}:CentralCritic"),)}
    env = f"{EXAMPLES}:MultiAgentCartPole"
    runner = make(env, {"agent_0": MLP, "agent_1": MLP}, num_envs=2, spec=spec)
    batches = sample(runner, 0, 60).batch.policy_batches
    at = {
        policy_id: {(row["eps_id"], row["t"]): row for row in batch.rows()}
        for policy_id, batch in batches.items()
    }
    together = at["agent_0"].keys() & at["agent_1"].keys()
    assert len(together) > 20
    for policy_id, other in (("agent_0", "agent_1"), ("agent_1", "agent_0")):
        for place, row in at[policy_id].items():
            there = at[other][place]["obs"] if place in together else np.zeros(4)
            np.testing.assert_array_equal(row["central_obs"], [*row["obs"], *there])


def test_nobody_who_postprocesses_costs_nothing():
    runner = make(f"{EXAMPLES}:TakeTurns", {"p": MLP})
    assert runner.postprocess.does_nothing

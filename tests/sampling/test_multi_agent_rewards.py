"""Rewards are normalised policy by policy, each agent's return running for itself."""

from collections import defaultdict

import numpy as np
import pytest
from agent_runners import ECHO, make, sample
from scripted_agents import EXPECTED, LENGTH, TOTALS

from rlrun.config.policies import PolicySettings
from rlrun.config.schema import (
    ConnectorsConfig,
    EnvRunnersConfig,
    EnvSpec,
    ModelConfig,
    TrainingConfig,
)
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest

AGENTS = {"p": "ab", "q": "c"}
GAMMAS = {"p": 0.9, "q": 0.5}


@pytest.fixture
def runner():
    policies = {
        name: PolicySettings(ModelConfig(), TrainingConfig(gamma=gamma), use="scripted_agents:Echo")
        for name, gamma in GAMMAS.items()
    }
    spec = RunnerSpec(
        EnvSpec(use="scripted_agents:Scripted"),
        settings=EnvRunnersConfig(disable_env_checking=True),
        connectors=ConnectorsConfig(normalize_rewards=True),
        multi_agent=MultiAgentSpec(policies, {"[ab]": "p", "*": "q"}),
    )
    return EnvRunner(spec)


def sampled(runner, fragments, length):
    """Rewards by agent, episode and step."""
    found = {}
    for k in fragments:
        batch = runner.sample_fragment(SampleRequest(k, length)).batch
        for rows in batch.policy_batches.values():
            for row in rows.rows():
                agent = "abc"[row["agent_index"]]
                found[agent, row["eps_id"] & 0xFFFF, int(row["t"])] = float(row["rewards"])
    return found


def expected(num_episodes):
    """Detail 6 of the continuous ones, written out for the script: agent by agent, step by step."""
    found = {}
    for policy, agents in AGENTS.items():
        seen, returns = [], defaultdict(float)
        for episode in range(num_episodes):
            for t in range(LENGTH):
                done = {a: row for a in agents for row in EXPECTED[a] if row[3] == t}
                for agent, row in done.items():
                    returns[agent] = returns[agent] * GAMMAS[policy] + row[2]
                    seen.append(returns[agent])
                deviation = np.std(seen, ddof=1) if len(set(seen)) > 1 else 1.0
                for agent, row in done.items():
                    found[agent, episode, t] = float(np.clip(row[2] / deviation, -10, 10))
                    if row[4] or row[5]:
                        returns[agent] = 0.0
    return found


@pytest.mark.parametrize("length", [1, 3, LENGTH])
def test_normalisation_by_policy_against_a_slow_transcription(runner, length):
    found = sampled(runner, range(-(-3 * LENGTH // length)), length)
    for place, reward in expected(3).items():
        assert found[place] == pytest.approx(reward, rel=1e-5), place


def test_rewards_of_any_precision_are_summed_in_double_precision():
    env = {"use": "scripted_agents:Scripted", "script": "HALF_PRECISION"}
    reply = sample(make(env, {"p": ECHO}), 0, 3)
    assert sorted(reply.batch["p"]["rewards"].tolist()) == [1, 1, 2048, 2050]  # a was silent
    (episode,) = reply.episodes
    assert repr(episode.episode_return) == "4100.0"
    assert [total for _, _, total in episode.agents] == [2050, 2050]


def test_evaluation_teaches_the_statistics_nothing(runner):
    sampled(runner, range(4), 3)
    before = {name: actor.connectors.get_state() for name, actor in runner.actors.items()}
    episodes = run_episodes(runner, range(3), seed=7, explore=True)
    assert [episode.episode_return for episode in episodes] == [sum(TOTALS.values())] * 3
    for name, actor in runner.actors.items():
        assert actor.connectors.get_state() == before[name]

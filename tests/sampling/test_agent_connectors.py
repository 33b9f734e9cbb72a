"""Connectors of one's own with several agents: one pipeline a policy, each agent a slot of it."""

import json
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import ECHO, EXAMPLES, LSTM, MLP, by_agent, cartpole, make, sample
from scripted_agents import EXPECTED, Scripted

from rlrun import Connector, PPOConfig
from rlrun.checkpoint.state_codec import decode, encode
from rlrun.connectors.errors import ConnectorError
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import play_episodes
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec
from rlrun.sampling.seeding import Role

assert Scripted  # imported by its import path below


class Diary(Connector):
    """Puts the last two rewards, actions and observations, and the step, behind the observation."""

    def connect(self, space):
        width = int(np.prod(space.shape, dtype=int))  # 1 for Discrete
        return gym.spaces.Box(-np.inf, np.inf, (width + 7,), np.float32)

    def __call__(self, observations, history):
        actions = np.zeros((len(observations), 2), np.float32)
        if (history.steps > 0).any():
            actions[:] = history.actions(2)
        earlier = history.observations(2).reshape(len(observations), 3, -1)[:, :, 0]
        parts = [
            observations.reshape(len(observations), -1),
            history.rewards(2),
            actions,
            earlier[:, :-1],
            history.steps[:, None],
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)


class Sticky(Connector):
    """Sometimes sends what it sent last: draws, and remembers for each agent."""

    def __init__(self, env, seed, p=0.3):
        self.p, self.rng = p, np.random.default_rng(seed)
        self.sent = np.zeros(env.num_envs, np.int64)

    def __call__(self, actions, history):
        env_indices = history.slots
        repeated = (self.rng.random(len(actions)) < self.p) & (history.steps > 0)
        self.sent[env_indices] = np.where(repeated, self.sent[env_indices], actions)
        return self.sent[env_indices]

    def get_state(self):
        return {"sent": self.sent.copy(), "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.sent = np.array(state["sent"])
        self.rng.bit_generator.state = state["rng"]


HERE = __name__
PIECES = {
    "env_to_module_connector": [{"use": f"{HERE}:Diary"}, {"use": "custom_connectors:Centred"}],
    "module_to_env_connector": [{"use": f"{HERE}:Sticky", "p": 0.4}],
    "episode_lookback_horizon": 2,
}


def diary(numbers, rewards):
    """What `Diary` puts behind each observation of one agent, written out."""
    rows = []
    for step in range(len(numbers)):
        back = [step - 2, step - 1]
        rows.append(
            [
                *(rewards[t] if t >= 0 else 0 for t in back),
                *(numbers[t] if t >= 0 else 0 for t in back),
                *(numbers[max(t, 0)] for t in back),
                step,
            ]
        )
    return rows


@pytest.mark.parametrize("table", [None, {"[ab]": "p", "c": "q"}])
@pytest.mark.parametrize(("length", "num_envs"), [(1, 1), (3, 2), (21, 1)])
def test_pieces_see_each_agents_own_past(table, length, num_envs):
    policies = {"p": ECHO} if table is None else {"p": ECHO, "q": ECHO}
    settings = {
        "env_to_module_connector": [{"use": f"{HERE}:Diary"}],
        "episode_lookback_horizon": 2,
    }
    runner = make("scripted_agents:Scripted", policies, table, num_envs=num_envs, **settings)
    rows = by_agent([sample(runner, k, length).batch for k in range(-(-21 // length))])
    for env_index in range(num_envs):
        for episode in range(3):
            for index, agent in enumerate("abc"):
                expected = EXPECTED[agent]
                numbers, rewards = [row[0] for row in expected], [row[2] for row in expected]
                found = rows[env_index, episode, index]
                assert [row["obs"][0] for row in found] == numbers
                assert [row["obs"][1:].tolist() for row in found] == diary(numbers, rewards)
                for row, led_to in pairwise(found):
                    np.testing.assert_array_equal(row["new_obs"], led_to["obs"])


@pytest.mark.parametrize("env", ["MultiAgentCartPole", "TakeTurns"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("policy", [MLP, LSTM], ids=["mlp", "lstm"])
def test_a_restored_runner_goes_on_to_the_bit(env, soft, policy):
    more = {"horizon": 5, "soft_horizon": True} if soft else {}

    def build():
        policies = {"agent_0": policy, "rest": MLP}
        table = {"*_0": "agent_0", "*": "rest"}
        settings = {**PIECES, "observation_filter": "MeanStdFilter", **more}
        return make(f"{EXAMPLES}:{env}", policies, table, num_envs=2, **settings)

    straight = build()
    weights = straight.get_weights()
    for fragment in range(3):
        sample(straight, fragment, 7)
    document, arrays = encode(straight.get_state())
    resumed = build()
    resumed.set_weights(weights)
    resumed.set_state(decode(json.loads(json.dumps(document)), arrays))
    for fragment in range(3, 6):
        one, other = sample(straight, fragment, 7), sample(resumed, fragment, 7)
        assert one.episodes == other.episodes
        for policy_id, batch in one.batch.policy_batches.items():
            for name, column in batch.items():
                np.testing.assert_array_equal(column, other.batch[policy_id][name], name)


def test_environments_get_what_the_pieces_put_out_and_the_batch_what_the_policy_chose():
    runner = cartpole({"p": MLP}, module_to_env_connector=[{"use": f"{HERE}:Sticky", "p": 1.0}])
    (env,) = runner.envs.envs
    received, step = [], env.step
    env.step = lambda actions: received.append(dict(actions)) or step(actions)
    rows = by_agent([sample(runner, 0, 40).batch])
    chosen = [int(row["actions"]) for row in rows[0, 0, 0]]
    sent = [actions["agent_0"] for actions in received if "agent_0" in actions][: len(chosen)]
    assert set(sent) == {chosen[0]}, "the first is repeated until the episode ends"
    assert set(chosen) == {0, 1}


def test_each_policy_has_pieces_of_its_own():
    runner = cartpole({"agent_0": MLP, "agent_1": MLP}, num_envs=3, **PIECES)
    sample(runner, 0, 20)
    one, other = (actor.connectors.get_state() for actor in runner.actors.values())
    stats = [state["observations"]["connectors"]["1"]["stat"] for state in (one, other)]
    assert not np.array_equal(stats[0]["mean"], stats[1]["mean"])
    draws = [state["actions"]["0"]["rng"]["state"] for state in (one, other)]
    assert draws[0] != draws[1]
    assert len(one["actions"]["0"]["sent"]) == 6, "two agents in each of three environments"


def test_a_piece_that_fails_is_named():
    runner = cartpole({"p": MLP}, env_to_module_connector=[{"use": "custom_connectors:Raises"}])
    with pytest.raises(ConnectorError, match=r"connector custom_connectors:Raises failed"):
        sample(runner, 0, 3)


def test_evaluation_learns_nothing_and_does_not_depend_on_the_one_before():
    trained = cartpole({"p": MLP}, num_envs=2, **PIECES)
    sample(trained, 0, 30)
    spec = RunnerSpec(
        trained.spec.env, trained.spec.settings, multi_agent=MultiAgentSpec({"p": MLP})
    )
    runner = EnvRunner(spec, role=Role.EVALUATION)
    state = {"p": {"observations": {"connectors": {}, "default": {}}, "rewards": {}, "actions": {}}}
    played = []
    for seed in (3, 4, 3):
        runner.load(None, 1, state)
        played.append(play_episodes(runner, num_episodes=4, seed=seed, explore=True))
    assert played[0] == played[2] != played[1]
    learned = runner.actors["p"].connectors.get_state()["observations"]["connectors"]["1"]["stat"]
    assert learned["count"] == 0


def algorithm():
    return (
        PPOConfig()
        .environment("MultiAgentCartPole")
        .env_runners(num_envs_per_env_runner=2, **PIECES)
        .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
        .model(hidden=[8])
        .multi_agent(policies=["agent_0", "agent_1"])
        .evaluation(interval=1, episodes=2)
        .debugging(seed=5)
        .build()
    )


def test_an_algorithm_learns_through_them_and_is_restored(tmp_path):
    one, other = algorithm(), algorithm()
    try:
        one.train()
        one.save(tmp_path / "checkpoint")
        other.restore(tmp_path / "checkpoint")
        state = one.policies.connectors.get_state()["agent_1"]["observations"]
        stat = state["connectors"]["1"]["stat"]
        assert stat["count"] > 0
        results = [each.train() for each in (one, other)]
        assert results[0]["episode_return_mean"] == results[1]["episode_return_mean"]
        assert results[0]["evaluation"] == results[1]["evaluation"]
        for name, value in one.get_weights().items():
            np.testing.assert_array_equal(value, other.get_weights()[name])
    finally:
        one.stop()
        other.stop()

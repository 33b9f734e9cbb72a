"""Agents come and go: the runner's batches against trajectories written by hand."""

import re
from collections import Counter, defaultdict

import counting_envs
import gymnasium as gym
import numpy as np
import pytest
from agent_runners import ECHO, EXAMPLES, LSTM, MLP, by_agent, cartpole, make, played, sample
from scripted_agents import EXPECTED, LENGTH, TOTALS, Scripted

from rlrun.config.problems import ConfigError
from rlrun.data.sample_batch import SampleBatch
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import MultiAgentEnv, make_multi_agent
from rlrun.sampling.evaluation import run_episodes

TABLES = {
    "each its own": ({"a": ECHO, "b": ECHO, "c": ECHO}, None),
    "one for all": ({"p": ECHO}, None),
    "by pattern": ({"p": ECHO, "q": ECHO}, {"[ab]": "p", "*": "q"}),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("length", "num_envs"), [(1, 1), (3, 2), (4, 1), (5, 3), (16, 2)])
def test_trajectories_equal_the_ones_written_by_hand(table, length, num_envs):
    policies, agents = TABLES[table]
    runner = make("scripted_agents:Scripted", policies, agents, num_envs=num_envs)
    replies = [sample(runner, k, length) for k in range(-(-4 * LENGTH // length))]
    rows = by_agent([reply.batch for reply in replies])
    for env_index in range(num_envs):
        for episode in range(3):
            for index, agent in enumerate("abc"):
                assert played(rows[env_index, episode, index]) == EXPECTED[agent]
    for reply in replies:
        assert reply.env_steps == length * num_envs
        for episode in reply.episodes:
            assert {name: total for name, _, total in episode.agents} == TOTALS
            assert episode.episode_return == sum(TOTALS.values())
            assert episode.length == LENGTH
    # No fragment's unroll ids come again, and a batch's rows stand agent after agent.
    seen = set()
    for reply in replies:
        for batch in reply.batch.as_multi_agent().policy_batches.values():
            batch.check_valid()
            chunks = batch["unroll_id"][np.r_[True, np.diff(batch["unroll_id"]) != 0]]
            assert len(set(chunks)) == len(chunks)
            new = {("p", int(chunk)) for chunk in set(chunks)} if len(policies) == 1 else set()
            assert not new & seen
            seen |= new


@pytest.mark.parametrize("num_envs", [1, 3])
def test_complete_episodes_come_whole(num_envs):
    runner = make(
        "scripted_agents:Scripted",
        {"p": ECHO},
        num_envs=num_envs,
        batch_mode="complete_episodes",
    )
    for k in range(3):
        reply = sample(runner, k, 9)
        rows = by_agent([reply.batch])
        assert {len(found) for found in rows.values()} == {6, 3}
        for (_, _, index), found in rows.items():
            assert played(found) == EXPECTED["abc"[index]]
        assert reply.env_steps == reply.batch.env_steps() >= 9 * num_envs
        assert reply.env_steps % LENGTH == 0


def test_fragments_are_counted_in_agent_steps_if_asked_for():
    runner = make("scripted_agents:Scripted", {"p": ECHO}, num_envs=2, by_agent=True)
    for k in range(6):
        reply = sample(runner, k, 10)
        assert 20 <= reply.batch.agent_steps() <= 20 + 5  # of the last step, in which 6 may act
        assert reply.env_steps < 20


def test_an_episode_has_the_numbers_of_the_agents_whose_last_infos_have_them():
    env = {"use": "scripted_agents:Scripted", "script": "NUMBERS_OF_ONE"}
    (episode,) = sample(make(env, {"p": ECHO}, spec={"info_keys": ("x",)}), 0, 1).episodes
    assert episode.agent_metrics == {"a": {"x": 2.0}}


def test_whole_episodes_are_counted_in_agent_steps_if_asked_for():
    settings = {"by_agent": True, "batch_mode": "complete_episodes"}
    runner = make("scripted_agents:Scripted", {"p": ECHO}, **settings)
    for fragment, (length, episodes) in enumerate([(12, 1), (13, 2), (24, 2)]):
        reply = sample(runner, fragment, length)
        assert (reply.agent_steps, reply.env_steps) == (12 * episodes, LENGTH * episodes)


def test_a_fragment_ends_with_the_agent_step_that_fills_it():
    reply = sample(cartpole({"p": MLP}, by_agent=True), 0, 10)
    assert (reply.agent_steps, reply.env_steps) == (10, 5)  # no pole has fallen by then


def test_fragments_have_the_agent_steps_that_they_should_where_episodes_are_dropped():
    spec = {
        "restart_failed_sub_environments": True,
        "max_sub_environment_failures_per_1000_steps": 1000.0,
    }
    env = {"use": "random_agents:RandomAgents", "crash": 0.1}
    runner = make(env, {"p": MLP}, num_envs=3, by_agent=True, spec=spec, disable_env_checking=True)
    replies = [sample(runner, k, 20) for k in range(6)]
    assert replies[-1].faulty_episodes > 10
    for reply in replies:
        assert 60 <= reply.agent_steps < 60 + 12


def test_many_agents_may_begin_at_once():
    reply = sample(cartpole({"main": MLP}, agents=600), 0, 2)
    assert reply.agent_steps == len(reply.batches.policy_batches["main"]) == 1200


def test_one_forward_pass_a_policy_and_step():
    runner = cartpole({"agent_0": MLP, "agent_1": MLP}, num_envs=4)
    calls = Counter()
    for name, actor in runner.actors.items():
        original = actor.policy.compute_actions

        def counted(obs, *args, _name=name, _original=original, **kwargs):
            calls[_name] += 1
            return _original(obs, *args, **kwargs)

        actor.policy.compute_actions = counted
    reply = sample(runner, 0, 30)
    assert set(calls) == {"agent_0", "agent_1"}
    assert max(calls.values()) <= 30 == reply.vector_steps


def test_the_spaces_of_an_agent_are_compared_once(monkeypatch):
    runner = cartpole({"main": MLP}, num_envs=2)
    sample(runner, 0, 8)
    module = "rlrun.envs.multi_agent_vector_env"
    monkeypatch.setattr(f"{module}.require_spaces", lambda *_: pytest.fail("compared again"))
    assert len(by_agent([sample(runner, 1, 200).batch])) > 4


def test_another_number_of_sub_environments_gives_the_same_data():
    """What an agent does follows from the seed of its episode."""
    alone, beside = cartpole({"p": MLP}), cartpole({"p": MLP}, num_envs=3)
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.3, len(alone.actors["p"].policy.get_weights())).astype(np.float32)
    for runner in (alone, beside):
        runner.set_weights({"p": weights})
    one = by_agent([sample(alone, k, 50).batch for k in range(2)])
    three = by_agent([sample(beside, k, 25).batch for k in range(4)])
    assert {key for key in three if key[0] == 0} == set(one)
    for key, rows in one.items():
        for here, there in zip(rows, three[key], strict=True):
            assert here["actions"] == there["actions"]
            np.testing.assert_allclose(here["obs"], there["obs"], rtol=1e-6)
            np.testing.assert_allclose(here["action_logp"], there["action_logp"], rtol=1e-4)


class Restless:
    """A cart pole that starts anywhere, whatever the seed."""

    def __new__(cls):
        from rlrun.envs.multi_agent_examples import MultiAgentCartPole

        env = MultiAgentCartPole()
        reset = env.reset
        env.reset = lambda seed=None, options=None: reset()
        return env


def test_a_sub_environment_that_cannot_be_replayed_starts_afresh(caplog):
    runner, other = (make("test_multi_agent_env_runner:Restless", {"p": MLP}) for _ in range(2))
    sample(runner, 0, 5)
    other.set_state(runner.get_state())
    assert "sub-env 0 of runner 0" in caplog.text
    assert "fresh episode" in caplog.text
    batch = sample(other, 1, 5).batch["p"]
    assert batch["t"].min() == 0
    assert batch["eps_id"].min() == 1


def newest(agent, episode):
    return episode.policies[-1]


def test_episodes_whose_policy_is_gone_are_given_up_for_new_ones():
    env, agents = f"{EXAMPLES}:MultiAgentCartPole", "test_multi_agent_env_runner:newest"
    runner = make({"use": env, "num_agents": 2}, {"p": MLP, "q": MLP}, agents, num_envs=2)
    given_up = sample(runner, 0, 3).batch.policy_batches
    assert set(given_up) == {"q"}
    runner.set_policies({"p": MLP})
    batch = sample(runner, 1, 3).batch["p"]
    assert set(batch["eps_id"]).isdisjoint(given_up["q"]["eps_id"])
    assert sorted(batch["t"]) == [0] * 4 + [1] * 4 + [2] * 4  # of two agents each


def every_other(agent, episode):
    """The newest policy has the agents of every other episode."""
    return episode.policies[-(episode.seed % 2)]


def test_a_state_with_a_policy_that_is_gone_loses_its_episodes_and_no_others(caplog):
    env, agents = f"{EXAMPLES}:MultiAgentCartPole", "test_multi_agent_env_runner:every_other"
    runner = make(env, {"p": MLP, "q": MLP}, agents, num_envs=6)
    rows = sample(runner, 0, 3).batch.policy_batches
    lost, kept = (set(rows[name]["env_id"].tolist()) for name in ("q", "p"))
    assert lost
    assert kept
    other = make(env, {"p": MLP}, agents, num_envs=6)
    other.set_weights({"p": runner.get_weights()["p"]})
    other.set_state(runner.get_state())
    going_on = by_agent([sample(other, 1, 2).batch])
    first = {env_index: found[0]["t"] for (env_index, _, _), found in going_on.items()}
    assert first == {**dict.fromkeys(lost, 0), **dict.fromkeys(kept, 3)}
    assert not caplog.text


class Latecomer(MultiAgentEnv):
    """Agent b joins with the first step, if it comes at all."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(-1.0, 1.0, (1,)))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))
    comes = True

    def reset(self, *, seed=None, options=None):
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions):
        there = ("a", "b") if self.comes else ("a",)
        seen = dict.fromkeys(there, np.zeros(1, np.float32))
        return seen, dict.fromkeys(there, 1.0), {}, {}, {}


def test_a_sub_environment_whose_agents_do_not_come_to_the_replay_starts_afresh(
    monkeypatch, caplog
):
    runner, other = (make("test_multi_agent_env_runner:Latecomer", {"p": MLP}) for _ in range(2))
    sample(runner, 0, 5)
    monkeypatch.setattr(Latecomer, "comes", False)
    other.set_state(runner.get_state())
    assert "fresh episode" in caplog.text
    batch = sample(other, 1, 5).batch["p"]
    assert list(batch["t"]) == [0, 1, 2, 3, 4]
    assert set(batch["agent_index"]) == {0}


def test_agents_that_come_to_the_replay_alone_join_after_it(monkeypatch):
    monkeypatch.setattr(Latecomer, "comes", False)
    runner, other = (make("test_multi_agent_env_runner:Latecomer", {"p": MLP}) for _ in range(2))
    sample(runner, 0, 5)
    monkeypatch.setattr(Latecomer, "comes", True)
    other.set_state(runner.get_state())
    batch = sample(other, 1, 5).batch["p"]
    assert list(batch["t"][batch["agent_index"] == 0]) == [5, 6, 7, 8, 9]
    assert list(batch["t"][batch["agent_index"] == 1]) == [6, 7, 8, 9]


class WithoutAll(MultiAgentEnv):
    """Its agent leaves in the third step, and no flag ends the episode."""

    possible_agents = ("a",)
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, 6.0, (1,)))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions):
        self._time += 1
        return {"a": np.zeros(1, np.float32)}, {"a": 1.0}, {"a": self._time == 3}, {}, {}


def test_an_environment_that_lacks_the_flag_for_all_agents_is_told_of_it():
    with pytest.raises(EnvError, match="after it has left; only the flag __all__ ends an episode"):
        sample(make("test_multi_agent_env_runner:WithoutAll", {"p": MLP}), 0, 9)


class Unreliable(MultiAgentEnv):
    """Raises in this step of an episode of six."""

    possible_agents = ("a",)
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, 6.0, (1,)))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))
    raises_in = -1

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._seen(), {}

    def _seen(self):
        return {"a": np.array([self._time], np.float32)}

    def step(self, actions):
        if self._time == self.raises_in:
            raise RuntimeError("simulator lost")
        self._time += 1
        return self._seen(), {"a": 1.0}, {"__all__": self._time == 6}, {}, {}


@pytest.mark.parametrize("restart", [True, "auto", False])
def test_an_environment_that_raises_in_a_replay_is_built_again_and_starts_afresh(
    monkeypatch, restart
):
    spec = {"restart_failed_sub_environments": restart}
    runner, other = (
        make("test_multi_agent_env_runner:Unreliable", {"p": MLP}, spec=spec) for _ in range(2)
    )
    sample(runner, 0, 9)  # an episode that has ended proves the environment
    monkeypatch.setattr(Unreliable, "raises_in", 2)
    if not restart:
        with pytest.raises(EnvError, match="simulator lost") as caught:
            other.set_state(runner.get_state())
        assert caught.value.env_step == 2
        return
    other.set_state(runner.get_state())
    monkeypatch.undo()
    reply = sample(other, 1, 4)
    assert list(reply.batch["p"]["t"]) == [0, 1, 2, 3]
    assert set(reply.batch["p"]["eps_id"]) == {2}


def test_recurrent_states_belong_to_agents():
    """States at the start of sequences against the policy, run again step by step."""
    runner = cartpole({"p": LSTM}, num_envs=2)
    batches = [sample(runner, k, 13).batch["p"] for k in range(4)]
    policy = runner.actors["p"].policy
    states, last = {}, {}
    for batch in batches:
        starts = np.cumsum(batch["seq_lens"]) - batch["seq_lens"]
        for row in range(len(batch)):
            key = tuple(int(batch[name][row]) for name in ("env_id", "eps_id", "agent_index"))
            before = states.get(key, policy.get_initial_state())
            if row in starts:
                sequence = int(np.flatnonzero(starts == row)[0])
                for k, state in enumerate(before):
                    np.testing.assert_allclose(
                        batch[f"state_in_{k}"][sequence], state, rtol=1e-5, atol=1e-6
                    )
            action, reward = last.get(key, (0, 0.0))
            assert batch["prev_actions"][row] == action
            assert batch["prev_rewards"][row] == reward
            inputs = {f"state_in_{k}": state[None] for k, state in enumerate(before)}
            for name in ("obs", "prev_actions", "prev_rewards"):
                inputs[name] = batch[name][row : row + 1]
            _, outs, _ = policy.compute_actions_from_input_dict(inputs, explore=False)
            states[key] = [state[0] for state in outs]
            last[key] = int(batch["actions"][row]), float(batch["rewards"][row])


def test_evaluation_plays_exactly_n_episodes_with_any_number_of_sub_environments():
    results = []
    for num_envs in (1, 3):
        runner = cartpole({"p": MLP}, num_envs=num_envs)
        rng = np.random.default_rng(0)
        size = len(runner.actors["p"].policy.get_weights())
        runner.set_weights({"p": rng.normal(0, 0.3, size).astype(np.float32)})
        for explore in (False, True):
            episodes = run_episodes(runner, range(5), seed=3, explore=explore)
            results.append([(e.seed, e.length, e.agents) for e in episodes])
    assert results[0] == results[2]
    assert results[1] == results[3] != results[0]
    assert len(results[0]) == 5


@pytest.mark.parametrize("num_envs", [1, 2])
def test_recorders_see_each_agents_transitions(num_envs):
    seen = defaultdict(list)

    def record(step):
        for made in step.agents:
            assert made.action == made.obs[0]
            numbers = float(made.obs[0]), float(made.next_obs[0]), made.reward
            seen[made.episode, made.agent].append(
                (*numbers, made.step, made.terminated, made.truncated)
            )

    runner = make("scripted_agents:Scripted", {"p": ECHO}, num_envs=num_envs)
    run_episodes(runner, range(3), seed=1, recorder=record)
    for episode in range(3):
        for agent, expected in EXPECTED.items():
            begins = [0] + [row[3] + 1 for row in expected[:-1]] if agent != "c" else [3, 4, 5]
            wanted = [(*row[:3], t, *row[4:]) for row, t in zip(expected, begins, strict=True)]
            assert seen[episode, agent] == wanted


def test_an_environment_that_raises_is_built_again_and_its_episode_dropped():
    env = {"use": f"{EXAMPLES}:CrashingCartPole", "crash_probability": 0.03}
    runner = make(env, {"p": MLP}, num_envs=3, spec={"restart_failed_sub_environments": True})
    replies = [sample(runner, k, 40) for k in range(3)]
    assert replies[-1].faulty_episodes > 0
    for reply in replies:
        assert reply.env_steps == 120
        batch = reply.batch["p"]
        # Rows are delivered of episodes that end, or go on.
        assert batch.agent_steps() <= 240
        steps = {(row["env_id"], row["eps_id"], row["t"]) for row in batch.rows()}
        assert len(steps) == 120
    over = sum(len(reply.episodes) for reply in replies) + replies[-1].faulty_episodes
    assert runner.get_state()["episodes"]["number"].sum() == over  # no number is left out
    successor = make(env, {"p": MLP}, num_envs=3, spec={"restart_failed_sub_environments": True})
    successor.set_state(runner.get_state())
    assert sample(successor, 3, 1).faulty_episodes >= replies[-1].faulty_episodes
    with pytest.raises(EnvError, match="the cart went off the rails"):
        sample(make(env, {"p": MLP}), 0, 500)
    hopeless = make(
        env | {"crash_probability": 1.0},
        {"p": MLP},
        spec={"restart_failed_sub_environments": True},
        disable_env_checking=True,  # which would raise
    )
    with pytest.raises(EnvError, match="the cart went off the rails"):
        sample(hopeless, 0, 40)


@pytest.mark.parametrize(
    ("script", "message", "step"),
    [
        ("REWARD_OF_THE_DEAD", "agent 'b' of policy 'p': it is rewarded with 3.0 after it has", 1),
        ("RETURN_OF_THE_DEAD", "agent 'b' of policy 'p': it has an observation after it has", 1),
        ("NOT_A_NUMBER", "agent 'a' of policy 'p': observation holds NaN", 1),
        ("INFINITE_REWARD", "agent 'a' of policy 'p': the reward is inf", 0),
        ("NO_AGENT", "the episode ended before any agent had an observation", 0),
        ("STRANGER", "agent 'z' is not one of the env's possible agents", 0),
        ("NO_DICT", "step() must return five dicts by agent", 0),
        ("NO_INFOS", "step() must return five dicts by agent", 0),
        ("NO_REWARD", "agent 'a' of policy 'p': its reward is None, which is not a number", 0),
        ("TEXT_FOR_REWARD", "agent 'a' of policy 'p': its reward is '1', which is not a number", 0),
    ],
)
def test_dicts_that_disagree_are_named(script, message, step):
    runner = make({"use": "scripted_agents:Scripted", "script": script}, {"p": ECHO})
    with pytest.raises(EnvError) as caught:
        sample(runner, 0, 5)
    assert message in str(caught.value)
    assert caught.value.env_step == step


class NoInfos(Scripted):
    """Its resets return the observations alone."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


def test_a_reset_without_infos_is_no_failing_environment():
    runner = make(
        "test_multi_agent_env_runner:NoInfos",
        {"p": ECHO},
        spec={"restart_failed_sub_environments": True},
        disable_env_checking=True,
    )
    with pytest.raises(EnvError, match="must return two dicts by agent") as caught:
        sample(runner, 0, 5)
    assert "Traceback" not in str(caught.value)


PAIR = gym.spaces.Tuple([gym.spaces.Discrete(9)] * 2)
FORMS = {  # kind -> space, an observation in it, one of another form and what is said of it
    "bytes": (
        gym.spaces.Box(0, 255, (2,), np.uint8),
        np.zeros(2, np.uint8),
        np.array([300.7, -1.2]),
        "dtype float64, but the space has uint8",
    ),
    "small integers": (
        gym.spaces.Box(-128, 127, (2,), np.int8),
        np.array([100, -1]),
        np.array([3, 300]),
        "at index (1,) is 300, which int8 cannot hold",
    ),
    "nested integers": (
        gym.spaces.Dict(y=gym.spaces.Box(-128, 127, (2,), np.int8)),
        {"y": np.array([100, -1])},
        {"y": np.array([3, 300])},
        "['y'] at index (1,) is 300, which int8 cannot hold",
    ),
    "unsigned number": (gym.spaces.Discrete(9, dtype=np.uint8), 3, -1, "-1 is not in Discrete"),
    "nested unsigned number": (
        gym.spaces.Dict(y=gym.spaces.Discrete(9, dtype=np.uint8)),
        {"y": 3},
        {"y": 9},
        "9 is not in Discrete",
    ),
    "number": (gym.spaces.Discrete(10), 3, 2.7, "2.7 is not in Discrete"),
    "array of a number": (gym.spaces.Discrete(10), 3, np.array([3]), "is not in Discrete"),
    "numbers": (gym.spaces.MultiDiscrete([5, 5]), np.array([1, 2]), np.array([1.5, 2]), "not in M"),
    "flags": (
        gym.spaces.MultiBinary(2),
        np.array([1, 0], np.int8),
        np.array([0.9, 0]),
        "not in MultiBinary",
    ),
    "pair": (PAIR, (1, 2), (1,), "must be a tuple of 2"),
    "pair of three": (PAIR, (1, 2), (1, 2, 3), "must be a tuple of 2"),
}


class Formless(MultiAgentEnv):
    """The third observation of an agent has another form than its space says."""

    possible_agents = ("a", "b")

    def __init__(self, kind):
        space, good, bad, _ = FORMS[kind]
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self._good, self._bad = good, bad

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return dict.fromkeys("ab", self._good), {}

    def step(self, actions):
        self._time += 1
        seen = {"a": self._good, "b": self._good if self._time < 3 else self._bad}
        return seen, {}, {}, {}, {}


@pytest.mark.parametrize("kind", FORMS)
def test_an_observation_of_another_form_is_named_and_not_cast(kind):
    runner = make({"use": "test_multi_agent_env_runner:Formless", "kind": kind}, {"p": MLP})
    assert sample(runner, 0, 2).agent_steps == 4
    message = re.escape(FORMS[kind][-1])
    with pytest.raises(EnvError, match=f"agent 'b' of policy 'p'.*{message}") as caught:
        sample(runner, 1, 1)
    assert caught.value.env_step == 2


@pytest.mark.parametrize(
    ("policies", "agents", "message"),
    [
        (("p", "q"), {"a": "p", "b": "q"}, "agent 'c' has no policy"),
        (("p", "q"), {"*": "r"}, "agent 'a' is mapped to the policy 'r', which does not exist"),
        (("p", "q"), None, "agent 'a' has no policy"),
    ],
)
def test_agents_without_a_policy_are_named(policies, agents, message):
    with pytest.raises(ConfigError, match=f"multi_agent.agents: {message}"):
        make("scripted_agents:Scripted", dict.fromkeys(policies, ECHO), agents)


def test_the_default_policy_alone_gives_a_plain_batch():
    runner = make("scripted_agents:Scripted", {"default_policy": ECHO})
    assert isinstance(runner.sample(), SampleBatch)


several_counters = make_multi_agent(counting_envs.Counter)
several_in_one_array = make_multi_agent(counting_envs.ReusesItsArray)


def test_last_observations_are_those_before_the_reset_even_in_an_array_that_it_overwrites():
    batches = []
    for name in ("several_counters", "several_in_one_array"):
        env = {"use": f"{__name__}:{name}", "num_agents": 1}
        batch = sample(make(env, {"p": MLP}), 0, 20).batch.policy_batches["p"]
        batches.append(batch)
    plain, overwritten = batches
    assert plain["truncateds"].any()
    for name in ("obs", "new_obs", "actions"):
        np.testing.assert_array_equal(plain[name], overwritten[name])

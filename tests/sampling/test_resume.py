"""A runner that is restored from its state goes on to the bit, with one agent or several."""

import json

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import EXAMPLES, LSTM, MLP, cartpole, make, sample
from counting_envs import counting_spec
from custom_connectors import ALL_KINDS
from recording_policy import RecordingPolicy

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec, ModelConfig
from rlrun.envs.multi_agent_env import MultiAgentEnv
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec

MODES = ["truncate_episodes", "complete_episodes"]


def filtered(env, model=None, **settings):
    """One agent, with statistics of observations and of rewards."""
    settings = {"num_envs_per_env_runner": 3, "observation_filter": "MeanStdFilter", **settings}
    connectors, model = ConnectorsConfig(normalize_rewards=True), ModelConfig(**(model or {}))
    short = {"max_episode_steps": 40} if env in ("Pendulum-v1", "Taxi-v4") else {}
    spec = EnvSpec(use=env, **short)
    return EnvRunner(RunnerSpec(spec, EnvRunnersConfig(**settings), connectors, model))


def breakout(**settings):
    """Lives are lost here, and games go on."""
    pytest.importorskip("ale_py")
    small = {"conv": [[2, 12, 12]], "conv_head": 4}
    one = {"num_envs_per_env_runner": 1, "disable_env_checking": True}  # a game takes long to load
    return filtered("ALE/Breakout-v5", small, **settings, **one, observation_filter="NoFilter")


def counting(policy=None, *, env=None, **settings):
    policy = {} if policy is None else {"policy": policy}
    return EnvRunner(counting_spec(2, settings=settings, **policy, **(env or {})))


def several(env, policy, **settings):
    """Two policies, one of which has a memory in some cases."""
    policies = {"agent_0": policy, "rest": MLP}
    table = {"*_0": "agent_0", "*": "rest"}
    settings = {"observation_filter": "MeanStdFilter", **settings}
    return make(f"{EXAMPLES}:{env}", policies, table, num_envs=2, **settings)


WRAPPERS = [
    {"use": "TimeLimit", "max_episode_steps": 13},
    "TimeAwareObservation",
    {"use": "FrameStackObservation", "stack_size": 3},
]
SOFT = {"horizon": 5, "soft_horizon": True}
CASES = {
    **{env: lambda _env=env, **kw: filtered(_env, **kw) for env in ("CartPole-v1", "Pendulum-v1")},
    "categories": lambda **kw: filtered("Taxi-v4", **kw),
    "views and states": lambda **kw: counting(
        lambda o, a: RecordingPolicy(o, a, states=True), env={"random_length": True}, **kw
    ),
    "hard horizon": lambda **kw: counting(env={"length": 11}, horizon=4, **kw),
    "soft horizon": lambda **kw: counting(env={"length": 11}, **SOFT, **kw),
    "connectors": lambda **kw: filtered("CartPole-v1", **ALL_KINDS, **kw),
    "wrappers": lambda **kw: filtered("CartPole-v1", env_wrappers=WRAPPERS, **kw),
    "lost lives": breakout,
    "nested": lambda **kw: filtered(
        "counting_envs:NestedCounter",
        env_to_module_connector="custom_connectors:Picked",
        **{**kw, "observation_filter": "NoFilter"},
    ),
    **{
        f"{env}, {name}, {end}": lambda _env=env, _policy=policy, _settings=settings, **kw: several(
            _env, _policy, **_settings, **kw
        )
        for env in ("MultiAgentCartPole", "TakeTurns")
        for name, policy in (("mlp", MLP), ("lstm", LSTM))
        for end, settings in (
            ("no horizon", {}),
            ("hard horizon", {"horizon": 3}),
            ("soft horizon and connectors", {**SOFT, **ALL_KINDS}),
        )
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_restored_runner_goes_on_to_the_bit(case, mode, monkeypatch):
    straight, resumed = (CASES[case](batch_mode=mode) for _ in range(2))
    rng = np.random.default_rng(0)
    weights = straight.get_weights()
    for policy_id, initial in weights.items():
        if isinstance(initial, np.ndarray):
            noise = 0.1 * rng.normal(size=initial.shape)
            weights[policy_id] = initial + noise.astype(np.float32)
    straight.set_weights(weights)
    for fragment, length in enumerate((17, 9, 4)):  # ends in the middle of episodes
        sample(straight, fragment, length)
    document, arrays = encode(straight.get_state())
    resumed.set_weights(weights)
    state = decode(json.loads(json.dumps(document)), arrays)
    resumed.set_state(state)
    expected = two_more(straight)
    assert_equal_replies(two_more(resumed), expected)
    straight.set_state(state)  # a step back, in the middle of other episodes
    assert_equal_replies(two_more(straight), expected)
    monkeypatch.setattr(straight, "_build", fail)  # as where an environment raises
    with pytest.raises(ZeroDivisionError):
        sample(straight, 5, 8)
    monkeypatch.undo()
    straight.set_state(state)
    assert_equal_replies(two_more(straight), expected)


def two_more(runner):
    return [sample(runner, fragment, length) for fragment, length in ((3, 7), (4, 11))]


def fail(*_):
    raise ZeroDivisionError


def assert_equal_replies(replies, expected):
    for one, other in zip(replies, expected, strict=True):
        assert one.episodes == other.episodes
        assert repr(one.connector_deltas) == repr(other.connector_deltas)
        batches = [reply.batch.as_multi_agent().policy_batches for reply in (one, other)]
        assert batches[0].keys() == batches[1].keys()
        for policy_id, batch in batches[0].items():
            assert batch.keys() == batches[1][policy_id].keys()
            for name, column in batch.items():
                np.testing.assert_array_equal(column, batches[1][policy_id][name], name)


@pytest.mark.parametrize(
    "env", [{"length": 3}, {"use": "counting_envs:gymnasium_sync", "mode": "DISABLED"}]
)
def test_a_runner_is_restored_to_the_bit_after_any_step(env):
    """Where episodes have just ended, too."""
    straight, resumed = (counting(env=env) for _ in range(2))
    ends = 0
    for fragment in range(9):
        one = sample(straight, fragment, 1).batch
        if fragment:
            other = sample(resumed, fragment, 1).batch
            for name, column in one.items():
                np.testing.assert_array_equal(column, other[name], name)
        resumed.set_state(straight.get_state())
        ends += int((one["terminateds"] | one["truncateds"]).sum())
    assert ends > 3


@pytest.mark.parametrize("several_agents", [False, True])
def test_a_runner_of_another_seed_goes_on_in_the_running_episodes(several_agents, caplog):
    then, now = (
        cartpole({"p": MLP}, num_envs=2, spec={"seed": seed})
        if several_agents
        else EnvRunner(
            RunnerSpec(
                EnvSpec(use="CartPole-v1"),
                EnvRunnersConfig(num_envs_per_env_runner=2),
                ConnectorsConfig(),
                seed=seed,
            )
        )
        for seed in (1, 2)
    )
    now.set_weights(then.get_weights())
    sample(then, 0, 5)
    now.set_state(then.get_state())
    assert "another observation" not in caplog.text
    one, other = (sample(runner, 1, 1).batch.as_multi_agent() for runner in (then, now))
    for policy_id, batch in one.policy_batches.items():
        np.testing.assert_array_equal(batch["obs"], other.policy_batches[policy_id]["obs"])


@pytest.mark.parametrize(("num_envs", "before"), [(3, 1), (1, 3)])
@pytest.mark.parametrize("several_agents", [False, True])
def test_a_state_of_another_number_of_sub_environments_is_refused(num_envs, before, several_agents):
    then, now = (
        cartpole({"p": MLP}, num_envs=n) if several_agents else EnvRunner(counting_spec(n))
        for n in (before, num_envs)
    )
    sample(then, 0, 5)
    with pytest.raises(
        ValueError, match=f"num_envs_per_env_runner must be {before}, not {num_envs}"
    ):
        now.set_state(then.get_state())


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("sample_collector", "ColumnarCollector", "SimpleListCollector"),
        ("sample_collector", "SimpleListCollector", "ColumnarCollector"),
        ("batch_mode", "truncate_episodes", "complete_episodes"),
    ],
)
@pytest.mark.parametrize("several_agents", [False, True])
def test_a_state_whose_rows_are_kept_in_another_way_is_refused(several_agents, name, before, after):
    then, now = (
        cartpole({"p": MLP}, **{name: value})
        if several_agents
        else EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig(**{name: value})))
        for value in (before, after)
    )
    sample(then, 0, 5)
    with pytest.raises(ValueError, match=rf"env_runners\.{name} must be {before}, not {after}"):
        now.set_state(then.get_state())


def test_whole_episodes_can_be_followed_by_cut_ones():
    """The rows held back until their episodes end come in the next fragment."""
    then, now = (
        EnvRunner(
            RunnerSpec(
                EnvSpec(use="CartPole-v1"),
                EnvRunnersConfig(num_envs_per_env_runner=2, batch_mode=mode),
            )
        )
        for mode in ("complete_episodes", "truncate_episodes")
    )
    sample(then, 0, 30)
    assert then.get_state()["policies"]["default_policy"]["collector"]["held"]
    now.set_state(then.get_state())
    batch = sample(now, 1, 60).batch
    assert {int(rows["t"][0]) for rows in batch.split_by_episode()} == {0}


def test_a_restored_runner_takes_over_weights_whose_version_it_has_seen():
    runner = cartpole({"p": MLP})
    sample(runner, 0, 5)
    ours = runner.get_weights()
    runner.load(ours, 7, None)
    runner.set_state(runner.get_state())
    of_another_run = {"p": ours["p"] + 1}
    runner.load(of_another_run, 7, None)
    np.testing.assert_array_equal(runner.get_weights()["p"], of_another_run["p"])


class InOrder(MultiAgentEnv):
    """Keeps the order in which actions come; c and d join later."""

    possible_agents = ("a", "b", "c", "d")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(-1e6, 1e6, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))
    received = ()  # agents of the last step's actions, in their order

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._seen("ba"), {}

    def _seen(self, agents):
        return {agent: np.array([self._time], np.float32) for agent in agents}

    def step(self, actions):
        InOrder.received = tuple(actions)
        self._time += 1
        seen = self._seen([*reversed(actions), *("dc" if self._time == 2 else "")])
        return seen, {}, {"__all__": self._time == 9}, {}, {}


def test_actions_reach_an_environment_in_the_order_in_which_agents_have_joined():
    """With any policies, and also where they are replayed: it may draw random numbers for each."""
    policies, table = {"p": MLP, "q": MLP}, {"[ac]": "p", "*": "q"}
    runner, other = (make("test_resume:InOrder", policies, table) for _ in range(2))
    sample(runner, 0, 2)
    sample(runner, 1, 3)
    assert InOrder.received == ("b", "a", "d", "c")
    InOrder.received = ()
    other.set_state(runner.get_state())
    assert InOrder.received == ("b", "a", "d", "c")


class Kept(InOrder):
    """Has a state of its own, and repeats no actions."""

    def get_state(self):
        return {"time": self._time}

    def set_state(self, state):
        self._time = state["time"]


def drawn(agent, episode):
    return "pq"[int(episode.rng.integers(2))]


@pytest.mark.parametrize("use", ["InOrder", "Kept"])
def test_agents_that_join_after_a_resume_have_the_policies_that_they_would_have_had(use):
    """Though these are drawn, each after those of agents that have joined before."""
    straight, resumed = (
        make(f"test_resume:{use}", {"p": MLP, "q": MLP}, "test_resume:drawn", num_envs=6)
        for _ in range(2)
    )
    sample(straight, 0, 1)
    resumed.set_weights(straight.get_weights())
    resumed.set_state(straight.get_state())
    one, other = (sample(runner, 1, 5).batch.policy_batches for runner in (straight, resumed))
    for policy_id, batch in one.items():
        assert set(batch["agent_index"].tolist()) == {0, 1, 2, 3}
        for name in ("env_id", "agent_index", "t"):
            np.testing.assert_array_equal(batch[name], other[policy_id][name])

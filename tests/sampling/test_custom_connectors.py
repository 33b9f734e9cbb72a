"""Connectors of the user's own: what they see, what becomes of what they put out, their state."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import ECHO, MLP, by_agent, cartpole, make, sample
from custom_connectors import ALL_KINDS, Identity, with_module
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_agents import EXPECTED

from rlrun.config.problems import ConfigError
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec
from rlrun.connectors.connector import Connector
from rlrun.connectors.custom import (
    ConnectedEnv,
    ConnectorError,
    EnvToModule,
    ModuleToEnv,
    NamedConnector,
)
from rlrun.connectors.slot_history import SlotHistory
from rlrun.data import columns as col
from rlrun.data.nested import UnsupportedSpaceError
from rlrun.data.seeding import Role
from rlrun.policies.policy import Policy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

COUNTING = "counting_envs:CountingEnv"


class Parity(Policy):
    """Takes the parity of the first number; no weights."""

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.abs(obs_batch[:, :1].sum(-1)).astype(np.int64) % 2, [], {}


def spec_of(num_envs=2, env=COUNTING, policy=Parity, connectors=None, kwargs=None, **env_runners):
    factory = {} if policy is None else {"policy_factory": lambda o, a, m: policy(o, a)}
    return RunnerSpec(
        EnvSpec(use=env, kwargs=kwargs or {}),
        EnvRunnersConfig(num_envs_per_env_runner=num_envs, **env_runners),
        connectors or ConnectorsConfig(),
        seed=7,
        **factory,
    )


def recent(k=2, **more):
    recent = {"use": "custom_connectors:Recent", "k": k}
    return {"env_to_module_connector": recent, "episode_lookback_horizon": k, **more}


def collect(runner, lengths, weights=None, start=0):
    requests = enumerate(lengths, start)
    return [runner.sample_fragment(SampleRequest(i, n, 1), weights) for i, n in requests]


def rows_by_episode(batches):
    episodes = {}
    for batch in batches:
        for row in batch.rows():
            episodes.setdefault(int(row[col.EPS_ID]), []).append(row)
    return episodes


@settings(max_examples=25)
@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    k=st.integers(0, 4),
    env=st.sampled_from([COUNTING, "counting_envs:autonomous"]),
    whole=st.booleans(),
    soft=st.booleans(),
)
def test_what_is_looked_back_on_is_its_slow_transcription(num_envs, lengths, k, env, whole, soft):
    """Wherever fragments were cut, episodes were, and environments reset themselves."""
    counting = env == COUNTING
    runner = EnvRunner(
        spec_of(
            num_envs,
            env,
            kwargs={"random_length": True} if counting else {},
            **recent(k),
            batch_mode="complete_episodes" if whole and counting else "truncate_episodes",
            **({"horizon": 2, "soft_horizon": True} if soft and counting else {}),
        )
    )
    batches = [reply.batch for reply in collect(runner, lengths)]
    for rows in rows_by_episode(batches).values():
        begin = int(rows[0][col.T])
        plain = [row[col.OBS][:2] for row in rows] + [rows[-1][col.NEXT_OBS][:2]]
        seen = [row[col.OBS] for row in rows] + [rows[-1][col.NEXT_OBS]]
        for t in range(begin, begin + len(seen)):
            if t - k < begin and begin > 0:
                continue  # the batch of the steps before was given away earlier

            def at(values, step, before, begin=begin):
                return values[step - begin] if step >= begin else before

            steps = range(t - k, t)
            expected = [
                *plain[t - begin],
                *(at([row[col.REWARDS] for row in rows], step, 0) for step in steps),
                *(at([row[col.ACTIONS] for row in rows], step, 0) for step in steps),
                *(at(plain, step, plain[0])[1] for step in steps),
                t,
            ]
            np.testing.assert_array_equal(seen[t - begin], np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("env", "shape", "dtype"),
    [
        ("CartPole-v1", (), np.int64),
        ("Pendulum-v1", (1,), np.float32),
        ("counting_envs:NestedCounter", None, np.float32),
    ],
)
def test_actions_look_the_same_before_and_after_the_first_one(env, shape, dtype, monkeypatch):
    looked = []

    def look(connector, rows, history):
        looked.append(history.actions(2))
        return rows

    monkeypatch.setattr(Identity, "__call__", look)
    identity = "custom_connectors:Identity"
    runner = EnvRunner(
        spec_of(2, env, None, env_to_module_connector=identity, episode_lookback_horizon=2)
    )
    actions = collect(runner, [3], policy_weights(runner))[0].batch[col.ACTIONS]
    assert not looked[0].any()
    np.testing.assert_array_equal(looked[2], actions.reshape(2, 3, *actions.shape[1:])[:, :2])
    assert {found.shape for found in looked} == {(2, 2, *actions.shape[1:])}
    assert {found.dtype for found in looked} == {np.dtype(dtype)}
    assert shape in (None, actions.shape[1:])


def test_no_result_depends_on_where_fragments_are_cut():
    def whole(lengths):
        runner = EnvRunner(spec_of(kwargs={"length": 9}, **recent(4)))
        episodes = rows_by_episode([reply.batch for reply in collect(runner, lengths)])
        return {i: [row[col.OBS].tolist() for row in rows] for i, rows in episodes.items()}

    assert whole([24]) == whole([1, 2, 3, 7, 11]) == whole([5, 19])


def test_the_policy_is_built_for_what_connectors_put_out():
    runner = EnvRunner(spec_of(policy=None, **recent(3)))
    assert runner.policy.observation_space.shape == (2 + 10,)
    batch = collect(runner, [5])[0].batch
    assert batch[col.OBS].shape == (10, 12)
    assert batch.shared(col.OBS)[0] is batch.shared(col.NEXT_OBS)[0], "still stored once"


def test_nested_observations_reach_connectors_as_they_are():
    runner = EnvRunner(
        spec_of(
            env="counting_envs:NestedCounter",
            policy=None,
            env_to_module_connector="custom_connectors:Picked",
        )
    )
    batch = collect(runner, [7], policy_weights(runner))[0].batch
    assert batch[col.OBS].shape == (14, 2)
    assert batch[col.T].tolist() == batch[col.OBS][:, 1].tolist()


def connectors_state(runner):
    return runner.actors["default_policy"].connectors.get_state()


def policy_weights(runner):
    rng = np.random.default_rng(0)
    return 0.3 * rng.normal(size=len(runner.policy.get_weights())).astype(np.float32)


def test_environments_get_what_connectors_put_out_and_the_batch_what_the_policy_chose():
    spec = spec_of(
        env="Pendulum-v1", policy=None, module_to_env_connector="custom_connectors:ThreePushes"
    )
    runner = EnvRunner(spec)
    assert runner.policy.action_space == gym.spaces.Discrete(3)
    received = []
    step = runner.envs.step
    runner.envs.step = lambda actions: received.append(np.array(actions)) or step(actions)
    batch = collect(runner, [6], policy_weights(runner))[0].batch
    assert batch[col.ACTIONS].dtype == np.int64
    sent = np.array(received)[:, :, 0].T.ravel()
    # The default connectors come behind: the torque's bounds are -2 and 2.
    np.testing.assert_allclose(sent, (batch[col.ACTIONS] - 1) * 2.0)
    centre = RunnerConnectors(spec, *spaces_of(runner))
    assert centre.action_space == gym.spaces.Discrete(3)


def spaces_of(runner):
    return runner.envs.single_observation_space, runner.envs.single_action_space


def test_without_the_default_connectors_only_custom_ones_run():
    switched_off = {
        "add_default_connectors_to_env_to_module_pipeline": False,
        "add_default_connectors_to_module_to_env_pipeline": False,
    }
    runner = EnvRunner(
        spec_of(
            env="Pendulum-v1",
            policy=None,
            module_to_env_connector="custom_connectors:ThreePushes",
            **switched_off,
        )
    )
    received = []
    step = runner.envs.step
    runner.envs.step = lambda actions: received.append(np.array(actions)) or step(actions)
    batch = collect(runner, [6], policy_weights(runner))[0].batch
    np.testing.assert_array_equal(np.array(received)[:, :, 0].T.ravel(), batch[col.ACTIONS] - 1)
    taxi = EnvRunner(spec_of(env="counting_envs:ContinuousCounter", policy=None))
    assert taxi.actors["default_policy"].connectors.history is None
    with pytest.raises(ConfigError, match="add_default_connectors_to_module_to_env_pipeline"):
        EnvRunner(spec_of(env="counting_envs:NestedCounter", policy=None, **switched_off))


class Announces(Connector):
    """Puts out a space whatever comes in, and twice the numbers in ``pair``."""

    def __init__(self, space):
        self.space = space

    def connect(self, space):
        return self.space

    def __call__(self, observations, history):
        return {**observations, "pair": 2 * observations["pair"]}


def nested_pipeline(connector):
    """Two environments with nested observations, and no default connectors."""
    space = gym.spaces.Dict(pair=gym.spaces.Box(-9, 9, (2,)), odd=gym.spaces.Discrete(2))
    return EnvToModule(
        [NamedConnector("announces", connector(space))],
        ConnectedEnv(space, gym.spaces.Discrete(2), 2),
        SlotHistory(2, 0, space),
        None,
    )


def test_nested_observations_leave_the_connectors_as_rows():
    pipeline = nested_pipeline(Announces)
    numbers = np.arange(4, dtype=np.float32).reshape(2, 2)
    for slots in ([0, 1], [1]):
        raw = {"pair": numbers[slots], "odd": np.array(slots)}
        for rows in (pipeline.first(raw, np.array(slots)), pipeline(raw, slots=np.array(slots))):
            assert rows.shape == (len(slots),)
            np.testing.assert_array_equal(rows["pair"], 2 * numbers[slots])
            assert rows["odd"].tolist() == slots
    pipeline({"pair": numbers, "odd": np.array([0, 1])})  # of all slots
    assert set(pipeline.get_state()) == {"connectors", "history"}


@pytest.mark.parametrize(
    ("update", "learns"),
    [(True, True), (False, False), (np.array([True, False]), True), (np.zeros(2, bool), False)],
)
def test_connectors_learn_where_any_of_the_rows_is_to_be_learned_from(update, learns):
    class Learns(Connector):
        def __call__(self, observations, history):
            seen.append(history.update)
            return observations

    seen, space = [], gym.spaces.Box(-9, 9, (2,))
    environment = ConnectedEnv(space, gym.spaces.Discrete(2), 2)
    connectors = [NamedConnector("learns", Learns())]
    pipeline = EnvToModule(connectors, environment, SlotHistory(2, 0, space), None)
    pipeline(np.zeros((2, 2), np.float32), update=update)
    assert seen == [learns]


def test_observations_that_do_not_fit_in_arrays_are_refused_before_there_are_any():
    with pytest.raises(UnsupportedSpaceError, match="Text"):
        nested_pipeline(lambda space: Announces(gym.spaces.Text(3)))


def test_without_the_default_connectors_arrays_stay_as_the_last_connector_made_them():
    space = gym.spaces.Box(-9, 9, (2,))
    environment = ConnectedEnv(space, gym.spaces.Discrete(2), 1)
    pipeline = EnvToModule([], environment, SlotHistory(1, 0, space), None)
    observations = np.ones((1, 2), np.float16)
    assert pipeline.first(observations, np.array([0])) is observations
    assert pipeline.output_space is space


class Counts(Connector):
    """Keeps how often it was called, which it does not tell the centre."""

    count = 0

    def __call__(self, values, history):
        self.count += 1
        return values

    def get_state(self):
        return {"count": self.count}


@pytest.mark.parametrize("num_envs", [0, 1])
def test_connectors_that_tell_nothing_have_a_state_where_there_are_sub_environments(num_envs):
    space, actions = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)
    given = [NamedConnector("counts", Counts())], ConnectedEnv(space, actions, num_envs)
    history = SlotHistory(num_envs, 0, space)
    pipelines = EnvToModule(*given, history, None), ModuleToEnv(*given, history, None)
    for found in (pipelines[0].get_state()["connectors"], pipelines[1].get_state()):
        assert found == ({"0": {"count": 0}} if num_envs else {})


def test_what_leaves_the_connectors_for_environments_is_not_written_to():
    space = gym.spaces.Box(-9, 9, (2,))
    environment = ConnectedEnv(space, gym.spaces.Discrete(2), 1)
    pipeline = ModuleToEnv([], environment, SlotHistory(1, 0, space), None)
    actions = np.array([1])
    sent = pipeline(actions)
    with pytest.raises(ValueError, match="read-only"):
        sent[0] = 0
    actions[0] = 0  # the policy's own may be
    assert pipeline.sent.tolist() == [1]


def test_what_runners_learn_is_merged_into_one_and_each_row_counted_once():
    spec = spec_of(env_to_module_connector="custom_connectors:two_connectors", kwargs={"length": 4})
    runners = [EnvRunner(spec, runner_index=i) for i in (1, 2)]
    centre = RunnerConnectors(spec, *spaces_of(runners[0]))
    seen = []
    state = None
    for fragment, length in enumerate([3, 5, 4]):
        replies = [
            runner.sample_fragment(SampleRequest(fragment, length, 1, state)) for runner in runners
        ]
        centre.apply_deltas([reply.connector_deltas["default_policy"] for reply in replies])
        state = {"default_policy": centre.get_state()}
        seen += [reply.batch for reply in replies]
    stat = centre.observations.get_state()["connectors"]["1"]["stat"]
    # Each step's observation, and each episode's final one; what comes next is known already.
    ended = sum(int((b[col.TERMINATEDS] | b[col.TRUNCATEDS]).sum()) for b in seen)
    running = 4
    assert stat["count"] == sum(len(b) for b in seen) + ended + running
    for runner in runners:
        runner.load(None, 1, state)
        mine = connectors_state(runner)["observations"]["connectors"]["1"]["stat"]
        np.testing.assert_array_equal(mine["mean"], stat["mean"])


def test_what_runners_learn_about_actions_is_merged_into_one_too():
    spec = spec_of(module_to_env_connector="custom_connectors:Counted")
    runners = [EnvRunner(spec, runner_index=i) for i in (1, 2)]
    centre = RunnerConnectors(spec, *spaces_of(runners[0]))
    for fragment, length in enumerate([3, 5]):
        replies = [sample(runner, fragment, length) for runner in runners]
        centre.apply_deltas([reply.connector_deltas["default_policy"] for reply in replies])
    assert centre.get_state()["actions"] == {"0": {"count": 2 * 2 * (3 + 5)}}


def test_the_centre_leaves_alone_what_belongs_to_sub_environments():
    runner = EnvRunner(spec_of(3, "CartPole-v1", policy=None, **ALL_KINDS))
    centre = RunnerConnectors(runner.spec, *spaces_of(runner))
    deltas = collect(runner, [5], policy_weights(runner))[0].connector_deltas
    centre.apply_deltas([deltas["default_policy"]])
    before = connectors_state(runner)
    runner.load(None, 1, {"default_policy": centre.get_state()})
    after = connectors_state(runner)
    assert repr(after["actions"]) == repr(before["actions"])
    assert repr(after["observations"]["history"]) == repr(before["observations"]["history"])


@pytest.mark.parametrize("several", [False, True])
def test_evaluation_learns_nothing_and_does_not_depend_on_the_one_before(several):
    if several:
        trained = cartpole({"default_policy": MLP}, num_envs=2, **ALL_KINDS)
    else:
        trained = EnvRunner(spec_of(2, "CartPole-v1", policy=None, **ALL_KINDS))
    sample(trained, 0, 50)
    state, weights = connectors_state(trained), policy_weights(trained)
    state["actions"] = {}  # the centre does not have what belongs to sub-environments
    runner = EnvRunner(trained.spec, role=Role.EVALUATION)
    played = []
    for seed in (3, 4, 3):
        runner.load({"default_policy": weights}, 1, {"default_policy": state})
        played.append(run_episodes(runner, range(4), seed=seed, explore=True))
    assert played[0] == played[2] != played[1]
    learned, before = (
        each["observations"]["connectors"]["1"]["stat"]
        for each in (connectors_state(runner), state)
    )
    assert learned["count"] == before["count"] > 0


def test_random_numbers_of_connectors_begin_anew_with_each_evaluation():
    blurred = {"env_to_module_connector": "custom_connectors:Blurred"}
    runner = EnvRunner(spec_of(2, "CartPole-v1", **blurred), role=Role.EVALUATION)
    played = []
    for seed in (3, 4, 3):
        runner.load(None, 1, None)
        played.append(run_episodes(runner, range(4), seed=seed))
    assert played[0] == played[2] != played[1]


def test_a_function_may_ask_for_the_module():
    modules = []
    with_module.seen = modules.append
    spec = spec_of(policy=None, module_to_env_connector="custom_connectors:with_module")
    runner = EnvRunner(spec)
    assert modules == [runner.policy], "the policy that acts"
    collect(runner, [3], policy_weights(runner))
    changing = "custom_connectors:changes_its_module"
    with pytest.raises(ConnectorError, match="change the action space"):
        EnvRunner(spec_of(env="Pendulum-v1", policy=None, module_to_env_connector=changing))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raises", 'return {}["no such key"]'),
        ("Halved", "expected 2 rows, one for each slot"),
        ("Misannounced", "announced Box"),
        ("LooksTooFar", "episode_lookback_horizon: 5 works"),
        ("LooksTooFarAtObservations", "episode_lookback_horizon: 5 works"),
        (
            "no_connector",
            "env_runners.env_to_module_connector: custom_connectors:no_connector must make",
        ),
    ],
)
def test_what_goes_wrong_is_said_with_the_users_own_traceback(name, message):
    spec = spec_of(env_to_module_connector=f"custom_connectors:{name}")
    with pytest.raises(ConnectorError) as caught:
        collect(EnvRunner(spec), [4])
    text = str(caught.value)
    assert message in text
    assert f"custom_connectors:{name}" in text
    if name == "Raises" or name.startswith("LooksTooFar"):
        assert text.startswith("Traceback")
        assert "custom_connectors.py" in text
        assert "connectors/custom.py" not in text


def recent_of(numbers, rewards):
    """What `Recent` puts behind each observation of one agent, written out."""
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
def test_connectors_see_each_agents_own_past(table, length, num_envs):
    policies = {"p": ECHO} if table is None else {"p": ECHO, "q": ECHO}
    settings = {
        "env_to_module_connector": [{"use": "custom_connectors:Recent"}],
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
                assert [row["obs"][1:].tolist() for row in found] == recent_of(numbers, rewards)
                for row, led_to in pairwise(found):
                    np.testing.assert_array_equal(row["new_obs"], led_to["obs"])


def test_slots_are_counted_through_the_agents_of_one_sub_environment_after_another():
    runner = cartpole({"p": MLP}, num_envs=3, env_to_module_connector="custom_connectors:Placed")
    batch = sample(runner, 0, 20).batch.as_multi_agent()["p"]
    slots = 2 * batch["env_id"] + batch["agent_index"]
    np.testing.assert_array_equal(batch["obs"][:, -1], slots)
    assert set(slots) == set(range(6))


def test_environments_of_several_agents_get_what_connectors_put_out():
    runner = cartpole(
        {"p": MLP}, module_to_env_connector=[{"use": "custom_connectors:Sticky", "p": 1.0}]
    )
    (env,) = runner.envs.envs
    received, step = [], env.step
    env.step = lambda actions: received.append(dict(actions)) or step(actions)
    rows = by_agent([sample(runner, 0, 40).batch])
    chosen = [int(row["actions"]) for row in rows[0, 0, 0]]
    sent = [actions["agent_0"] for actions in received if "agent_0" in actions][: len(chosen)]
    assert set(sent) == {chosen[0]}, "the first is repeated until the episode ends"
    assert set(chosen) == {0, 1}


def test_each_policy_has_connectors_of_its_own():
    runner = cartpole({"agent_0": MLP, "agent_1": MLP}, num_envs=3, **ALL_KINDS)
    sample(runner, 0, 20)
    one, other = (actor.connectors.get_state() for actor in runner.actors.values())
    stats = [state["observations"]["connectors"]["1"]["stat"] for state in (one, other)]
    assert not np.array_equal(stats[0]["mean"], stats[1]["mean"])
    draws = [state["actions"]["0"]["rng"]["state"] for state in (one, other)]
    assert draws[0] != draws[1]
    assert len(one["actions"]["0"]["sent"]) == 6, "two agents in each of three environments"

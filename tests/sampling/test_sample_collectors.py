"""All collectors make the same batches; a custom one is used where it is named."""

import json
from copy import deepcopy

import numpy as np
import pytest
from agent_runners import MLP, cartpole, make, sample
from counting_envs import CountingEnv, collect
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recording_policy import RecordingPolicy

import rlrun
from rlrun.checkpoint.state_codec import decode, encode
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import (
    ConnectorsConfig,
    EnvRunnersConfig,
    EnvSpec,
    ModelConfig,
    TrainingConfig,
)
from rlrun.data.view_requirement import ViewRequirement
from rlrun.envs.agent_slots import SlotStep
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.log_collector import LogCollector
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest
from rlrun.sampling.sample_collector import number_unrolls
from rlrun.sampling.simple_list_collector import SimpleListCollector

SOURCES = ("obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "t", "env_id")
SOURCES += ("agent_index", "infos")
AGENT_SOURCES = (*SOURCES, "mark")
COLLECTORS = (None, "SimpleListCollector")
MODES = ("truncate_episodes", "complete_episodes")
SHIFTS = st.one_of(
    st.integers(-4, 3),
    st.lists(st.integers(-4, 3), min_size=1, max_size=3),
    st.builds(lambda first, n: f"{first}:{first + n}", st.integers(-4, 1), st.integers(0, 3)),
    st.builds(
        lambda first, n, step: f"{first}:{first + n}:{step}",
        *(st.integers(-5, 2), st.integers(0, 6), st.integers(1, 3)),
    ),
)


class TellingEnv(CountingEnv):
    """Has infos at every other step, in one dict, and raises with probability `crash`."""

    def __init__(self, crash=0.0, **kwargs):
        super().__init__(**kwargs)
        self.crash, self.info = crash, {}

    def step(self, action):
        if self.np_random.random() < self.crash:
            raise RuntimeError("crash")
        obs, reward, terminated, truncated, _ = super().step(action)
        self.info["t"] = self.t
        return obs, reward, terminated, truncated, self.info if self.t % 2 else {}


def view_of(source, shift):
    return ViewRequirement(source, shift=shift)


def views_of(*sources):
    views = st.builds(view_of, st.sampled_from(sources), SHIFTS)
    return st.dictionaries(st.sampled_from(["x", "y", "z"]), views, max_size=3)


def runner_with(
    collector, num_envs, views=None, *, states=False, use=f"{__name__}:TellingEnv", **kw
):
    def policy(observation_space, action_space, model):
        made = RecordingPolicy(observation_space, action_space, states)
        seen = {name: view for name, view in made.view_requirements.items() if "state" in name}
        made.view_requirements = {"obs": ViewRequirement(), **seen, **(views or {})}
        return made

    return EnvRunner(
        RunnerSpec(
            EnvSpec(use=use, kwargs=kw.pop("env", {})),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs, sample_collector=collector, **kw),
            connectors=ConnectorsConfig(clip_rewards=2.0),
            restart_failed_sub_environments=not use.endswith(":autonomous"),
            policy_factory=policy,
        )
    )


def assert_equal_batches(one, other):
    one.check_valid()
    other.check_valid()
    assert one.keys() == other.keys()
    assert one.max_seq_len == other.max_seq_len
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def assert_equal_replies(one, other):
    assert one.episodes == other.episodes
    assert (one.env_steps, one.faulty_episodes) == (other.env_steps, other.faulty_episodes)
    batches = [reply.batch.as_multi_agent().policy_batches for reply in (one, other)]
    assert batches[0].keys() == batches[1].keys()
    for policy_id, batch in batches[0].items():
        assert_equal_batches(batch, batches[1][policy_id])


@settings(max_examples=80)
@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    views=views_of(*SOURCES, "unroll_id"),
    mode=st.sampled_from(MODES),
    states=st.booleans(),
    env=st.sampled_from(["random", "crashing", "autonomous"]),
    restored=st.booleans(),
)
def test_slots_that_act_together_make_the_same_batches(
    num_envs, lengths, views, mode, states, env, restored
):
    use = "counting_envs:autonomous" if env == "autonomous" else f"{__name__}:TellingEnv"
    arguments = {
        "random": {"random_length": True},
        "crashing": {"length": 4, "crash": 0.1},
        "autonomous": {},
    }
    if env == "autonomous":  # has no infos of single slots at its own resets
        views = {name: view for name, view in views.items() if view.data_col != "infos"}

    def runner(collector):
        return runner_with(
            *(collector, num_envs, views),
            states=states,
            use=use,
            env=arguments[env],
            batch_mode=mode,
        )

    fast, simple = (runner(name) for name in COLLECTORS)
    for i, length in enumerate(lengths):
        replies = [collect(each, [length])[0] for each in (fast, simple)]
        assert_equal_replies(*replies)
        assert replies[0].env_steps == len(replies[0].batch)
        assert fast.policy.saw.keys() == simple.policy.saw.keys()
        for step, seen in fast.policy.saw.items():
            for name, row in seen.items():
                np.testing.assert_array_equal(row, simple.policy.saw[step][name], err_msg=name)
        if restored and i == 0 and env != "crashing":
            states_then = fast.get_state(), simple.get_state()
            fast, simple = (runner(name) for name in COLLECTORS)
            fast.set_state(states_then[0])
            simple.set_state(states_then[1])


@pytest.mark.parametrize("collector", COLLECTORS)
def test_observations_share_one_storage(collector):
    for env in ({"env": {"length": 5}}, {"use": "counting_envs:autonomous"}):
        reply = collect(runner_with(collector, 2, **env), [10])[0]
        storage, _ = reply.batch.shared("obs")
        assert reply.batch.shared("new_obs")[0] is storage
        assert len(storage) <= 2 * (reply.vector_steps + 1) + len(reply.episodes)
        assert not reply.batch["agent_index"].any()


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_a_state_stays_as_it_was_taken_while_its_runner_goes_on(collector, mode):
    views = {"prev_infos": ViewRequirement("infos", shift=-1)}
    runner = runner_with(collector, 2, views, batch_mode=mode, env={"length": 7})
    collect(runner, [5])
    state = runner.get_state()["policies"]["default_policy"]["collector"]
    as_taken = deepcopy(state)
    collect(runner, [6])
    np.testing.assert_equal(state, as_taken)


@pytest.mark.parametrize(
    "then",
    [
        {"a": view_of("obs", -1)},
        {"b": view_of("actions", "-3:-1")},
        {"a": view_of("obs", -1), "b": view_of("actions", -1)},
        {"a": view_of("obs", 1)},
        {},
        {"a": view_of("obs", "-5:-1"), "b": view_of("actions", -2)},
        {"a": view_of("obs", "-3:-1"), "b": view_of("rewards", -2)},
    ],
)
@pytest.mark.parametrize(("agents", "length"), [(False, 5), (True, 5), (True, 1)])
def test_views_may_be_others_from_a_fragment_on(then, agents, length):
    """The past that was kept for those before is longer or shorter, or of more columns or fewer."""
    before = {"a": view_of("obs", "-3:-1"), "b": view_of("actions", -2)}
    if agents:
        several = {"states": False, "policies": ("p",), "num_envs": 2}
        runners = [runner_of(name, before, **several) for name in COLLECTORS]
    else:
        runners = [runner_with(name, 2, before) for name in COLLECTORS]
    for runner in runners:
        sample(runner, 0, length)
        (policy,) = runner.policies.values()
        policy.view_requirements = {"obs": ViewRequirement(), **then}
    assert_equal_replies(*(sample(runner, 1, 4) for runner in runners))


class Counting(SimpleListCollector):
    """Keeps how many transitions each call brings, and when batches are made."""

    calls: list[int | str] = []  # noqa: RUF012 - of all instances

    def add_step(self, step, *arguments, **further):
        Counting.calls.append(len(step.rewards))
        super().add_step(step, *arguments, **further)

    def build(self, *arguments, **further):
        Counting.calls.append("build")
        return super().build(*arguments, **further)


def test_a_custom_collector_is_named_by_its_import_path():
    Counting.calls.clear()
    collect(runner_with(f"{__name__}:Counting", 2), [5, 4])
    assert Counting.calls == [2] * 5 + ["build"] + [2] * 4 + ["build"]
    assert issubclass(Counting, rlrun.SampleCollector)
    assert rlrun.SimpleListCollector is SimpleListCollector


def test_infos_ids_and_flags_are_seen_a_step_later():
    views = {
        "prev_infos": ViewRequirement("infos", shift=-1),
        "prev_ends": ViewRequirement("terminateds", shift=-1),
        "prev_t": ViewRequirement("t", shift="-2:-1"),
        "next_id": ViewRequirement("eps_id", shift=1),
        "infos": ViewRequirement(),
    }
    runner = runner_with(None, 1, views, env={"length": 4})
    batch = collect(runner, [6])[0].batch
    assert batch["infos"].tolist() == [{"t": 1}, {}, {"t": 3}, {}, {"t": 1}, {}]
    assert batch["prev_infos"].tolist() == [{}, {"t": 1}, {}, {"t": 3}, {}, {"t": 1}]
    assert not batch["prev_ends"].any(), "no episode sees the end of the one before"
    assert batch["prev_t"].tolist() == [[0, 0], [0, 0], [0, 1], [1, 2], [0, 0], [0, 0]]
    ids = batch["eps_id"]
    assert batch["next_id"].tolist() == [*ids[1:4], 0, ids[5], 0]
    run_episodes(runner, range(2), seed=3)
    for (_, step), seen in runner.policy.saw.items():
        assert seen["prev_infos"] == ({"t": step} if step % 2 else {})
        assert seen["prev_t"].tolist() == [max(step - 2, 0), max(step - 1, 0)]


@pytest.mark.parametrize(("shift", "source"), [(1, "obs"), (0, "rewards"), (0, "infos")])
def test_what_is_not_known_yet_cannot_be_acted_on(shift, source):
    with pytest.raises(ValueError, match=r"not known (yet|when)"):
        runner_with(
            None, 1, {"x": ViewRequirement(source, shift=shift, used_for_compute_actions=True)}
        )


def runner_of(collector, views, *, states, policies, env=None, **settings):
    kwargs = {"states": states, **({"views": views} if views else {})}
    policy = PolicySettings(
        ModelConfig(), TrainingConfig(), use="random_agents:SumPolicy", kwargs=kwargs
    )
    table = {"a": policies[0], "*": policies[-1]}
    return make(
        {"use": "random_agents:RandomAgents", **(env or {})},
        dict.fromkeys(policies, policy),
        table,
        spec={
            "connectors": ConnectorsConfig(clip_rewards=2.0),
            "restart_failed_sub_environments": True,
        },
        sample_collector=collector,
        **settings,
    )


# A state in which no slot has a past: no rows of objects, which still have a shape.
@example(
    num_envs=1,
    lengths=[1, 1],
    views={"x": ViewRequirement("infos", shift=-1)},
    states=False,
    policies=("p",),
    mode="truncate_episodes",
    horizon={},
    crash=0.0,
    by_agent=False,
    restored=True,
)
@settings(max_examples=25)
@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    views=views_of(*AGENT_SOURCES),
    states=st.booleans(),
    policies=st.sampled_from([("p",), ("p", "q")]),
    mode=st.sampled_from(MODES),
    horizon=st.sampled_from([{}, {"horizon": 4}, {"horizon": 3, "soft_horizon": True}]),
    crash=st.sampled_from([0.0, 0.05]),
    by_agent=st.booleans(),
    restored=st.booleans(),
)
def test_slots_that_come_and_go_make_the_same_batches(
    *, num_envs, lengths, views, states, policies, mode, horizon, crash, by_agent, restored
):
    def build(collector):
        more = {
            "num_envs": num_envs,
            "by_agent": by_agent,
            "batch_mode": mode,
            "env": {"crash": crash},
        }
        return runner_of(collector, views, states=states, policies=policies, **more, **horizon)

    runners = [build(collector) for collector in COLLECTORS]
    for fragment, length in enumerate(lengths):
        first, *others = (sample(runner, fragment, length) for runner in runners)
        for other in others:
            assert_equal_replies(first, other)
        if restored and fragment == 0 and not crash:
            for i, runner in enumerate(runners):
                document, arrays = encode(runner.get_state())
                runners[i] = build(COLLECTORS[i])
                runners[i].set_state(decode(json.loads(json.dumps(document)), arrays))


@pytest.mark.parametrize("mode", MODES)
def test_many_agents_and_long_fragments_make_the_same_batches(mode):
    """More of either than there is room for at first."""
    views = {"frames": ViewRequirement("obs", shift="-2:0")}
    more = {"states": True, "policies": ("p",), "num_envs": 6, "batch_mode": mode}
    runners = [runner_of(collector, views, **more) for collector in COLLECTORS]
    for fragment, length in enumerate((30, 5, 30)):
        first, *others = (sample(runner, fragment, length) for runner in runners)
        for other in others:
            assert_equal_replies(first, other)


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_columns_that_are_left_out_are_not_sent(collector, mode):
    full, lean = (
        runner_of(collector, {}, states=False, policies=("p", "q"), num_envs=2, batch_mode=mode)
        for _ in range(2)
    )
    unread = {"q": frozenset({"mark", "derived", "env_id"})}
    for fragment in range(3):
        everything = sample(full, fragment, 9).batch
        rest = lean.sample_fragment(SampleRequest(fragment, 9, leave_out=unread)).batch
        assert everything["p"].keys() == rest["p"].keys()
        assert everything["q"].keys() - rest["q"].keys() == {"mark", "derived", "env_id"}
        for policy_id in ("p", "q"):
            for name, column in rest[policy_id].items():
                np.testing.assert_array_equal(column, everything[policy_id][name], name)


def test_a_custom_collector_gets_the_transitions_of_several_agents():
    Counting.calls.clear()
    runner = cartpole({"p": MLP}, sample_collector=f"{__name__}:Counting")
    rows = sum(sample(runner, k, 10).batch.agent_steps() for k in range(2))
    assert sum(calls for calls in Counting.calls if calls != "build") == rows


def test_infos_are_there_where_a_view_asks_for_them():
    views = {"told": ViewRequirement("infos"), "told_before": ViewRequirement("infos", shift=-1)}
    batches = [
        sample(
            runner_of(None, asked, states=False, policies=("p",), env={"end": 0.05}),
            0,
            60,
        ).batch["p"]
        for asked in (views, {})
    ]
    assert not {"told", "infos"} & batches[1].keys()
    told, before = batches[0]["told"], batches[0]["told_before"]
    assert any(info for info in told)
    assert {frozenset(info) for info in told} == {frozenset(), frozenset({"number"})}
    same = (batches[0]["eps_id"][1:] == batches[0]["eps_id"][:-1]) & (
        batches[0]["agent_index"][1:] == batches[0]["agent_index"][:-1]
    )
    for row in np.flatnonzero(same):
        assert before[row + 1] == told[row]
    assert before[0] == {}


def two_agents(collector):
    """A collector of two slots that come and go, and what makes a step of some of them."""
    made, t = collector(None, (1,), np.float32), np.zeros(2, np.int64)
    made.set_views(None, {})
    made.begin_fragment(None)
    places = np.array([[0, 0], [1, 0]])
    made.begin_episodes(np.arange(2), np.array([5, 6]), np.zeros((2, 1), np.float32), places)

    def step(*slots):
        slots = np.array(slots)
        t[slots] += 1
        flags = np.zeros((2, len(slots)), np.bool_)
        obs = np.zeros((len(slots), 1), np.float32)
        made.act(slots, slots, {})
        made.add_step(SlotStep(obs[:, 0], *flags, obs, slots=slots, steps=t[slots]), obs)

    return made, step


@pytest.mark.parametrize("collector", [LogCollector, SimpleListCollector])
def test_what_was_discarded_is_not_delivered_later(collector):
    made, step = two_agents(collector)
    step(0, 1)
    step(0, 1)
    made.discard()
    made.begin_fragment(None)
    step(0, 1)
    assert made.build()["t"].tolist() == [2, 2]


def test_the_log_keeps_the_observations_that_are_due_alone():
    log, step = two_agents(LogCollector)
    for _ in range(2):
        assert len(log.inputs()) == 2
        step(0, 1)
    log.end_episodes(np.array([0]))
    assert len(log.inputs()) == 1
    for _ in range(3):
        log.build()
        assert log.size == 1
        step(1)
        log.discard()
        assert log.size == 1
        step(1)


@pytest.mark.parametrize("collector", COLLECTORS)
def test_unroll_ids_of_several_agents_cannot_be_viewed(collector):
    views = {"x": ViewRequirement("unroll_id", shift=-1)}
    with pytest.raises(ValueError, match=r"view 'x': with several agents .* 'unroll_id'"):
        runner_of(collector, views, states=False, policies=("p",))


@pytest.mark.parametrize("flag", ["terminateds", "truncateds"])
def test_an_unroll_is_an_agents_rows_up_to_an_episode_that_begins_without_a_flag(flag):
    columns = {
        "env_id": np.array([0, 0, 0, 0, 0, 1]),
        "agent_index": np.array([0, 0, 0, 0, 1, 1]),
        "eps_id": np.array([5, 5, 6, 7, 5, 7]),
        "terminateds": np.zeros(6, np.bool_),
        "truncateds": np.zeros(6, np.bool_),
    }
    columns[flag][1] = True  # the episode 6 follows it; before 7 there is a soft horizon
    assert number_unrolls(columns, 40).tolist() == [40, 40, 40, 41, 42, 43]

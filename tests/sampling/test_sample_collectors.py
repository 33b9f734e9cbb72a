"""The two collectors make the same batches; a collector of one's own is used where it is named."""

from copy import deepcopy

import numpy as np
import pytest
from counting_envs import CountingEnv, collect
from hypothesis import given, settings
from hypothesis import strategies as st
from looking import Looking

import rlrun
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec
from rlrun.data.view_requirement import ViewRequirement
from rlrun.sampling import sample_collector
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import play_episodes
from rlrun.sampling.runner_messages import RunnerSpec
from rlrun.sampling.simple_list_collector import SimpleListCollector

SOURCES = ("obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "t", "unroll_id")
SOURCES += ("env_id", "agent_index", "infos")
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
    """Tells something at every other step, and raises now and then if it is to."""

    def __init__(self, crash=0.0, **kwargs):
        super().__init__(**kwargs)
        self.crash = crash

    def step(self, action):
        if self.np_random.random() < self.crash:
            raise RuntimeError("crash")
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"t": self.t} if self.t % 2 else {}


def view_of(source, shift):
    return ViewRequirement(source, shift=shift)


VIEWS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(view_of, st.sampled_from(SOURCES), SHIFTS),
    max_size=3,
)


def runner_with(collector, lanes, views=None, *, states=False, use=f"{__name__}:TellingEnv", **kw):
    def policy(observation_space, action_space, model):
        made = Looking(observation_space, action_space, states)
        seen = {name: view for name, view in made.view_requirements.items() if "state" in name}
        made.view_requirements = {"obs": ViewRequirement(), **seen, **(views or {})}
        return made

    return EnvRunner(
        RunnerSpec(
            EnvSpec(use=use, kwargs=kw.pop("env", {})),
            EnvRunnersConfig(num_envs_per_env_runner=lanes, sample_collector=collector, **kw),
            connectors=ConnectorsConfig(clip_rewards=2.0),
            restart_failed_sub_environments=True,
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


@settings(max_examples=80, deadline=None)
@given(
    lanes=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    views=VIEWS,
    mode=st.sampled_from(["truncate_episodes", "complete_episodes"]),
    states=st.booleans(),
    env=st.sampled_from(["random", "crashing", "autonomous"]),
    restored=st.booleans(),
)
def test_both_collectors_make_the_same_batches(lanes, lengths, views, mode, states, env, restored):
    use = "counting_envs:autonomous" if env == "autonomous" else f"{__name__}:TellingEnv"
    arguments = {
        "random": {"random_length": True},
        "crashing": {"length": 4, "crash": 0.1},
        "autonomous": {},
    }
    if env == "autonomous":  # tells nothing of single lanes at its own resets
        views = {name: view for name, view in views.items() if view.data_col != "infos"}

    def runner(collector):
        return runner_with(
            *(collector, lanes, views), states=states, use=use, env=arguments[env], batch_mode=mode
        )

    fast, simple = (runner(name) for name in ("ColumnarCollector", "SimpleListCollector"))
    for i, length in enumerate(lengths):
        replies = [collect(each, [length])[0] for each in (fast, simple)]
        assert_equal_batches(*(reply.batch for reply in replies))
        assert replies[0].episodes == replies[1].episodes
        assert replies[0].env_steps == replies[1].env_steps == len(replies[0].batch)
        assert fast.policy.saw.keys() == simple.policy.saw.keys()
        for step, seen in fast.policy.saw.items():
            for name, row in seen.items():
                np.testing.assert_array_equal(row, simple.policy.saw[step][name], err_msg=name)
        if restored and i == 0 and env != "crashing":
            states_then = fast.get_state(), simple.get_state()
            fast, simple = (runner(name) for name in ("ColumnarCollector", "SimpleListCollector"))
            fast.set_state(states_then[0])
            simple.set_state(states_then[1])


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_observations_share_one_storage(collector):
    batch = collect(runner_with(collector, 2, env={"length": 5}), [10])[0].batch
    storage, _ = batch.shared("obs")
    assert batch.shared("new_obs")[0] is storage
    assert len(storage) <= 2 * (10 + 1) + 4


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_a_state_stays_as_it_was_taken_while_its_runner_goes_on(collector, mode):
    views = {"prev_infos": ViewRequirement("infos", shift=-1)}
    runner = runner_with(collector, 2, views, batch_mode=mode, env={"length": 7})
    collect(runner, [5])
    state = runner.get_state()["policies"]["default_policy"]["collector"]
    as_taken = deepcopy(state)
    collect(runner, [6])
    np.testing.assert_equal(state, as_taken)


@pytest.mark.parametrize("then", [{"a": view_of("obs", -1)}, {"b": view_of("actions", "-3:-1")}])
def test_views_may_reach_back_less_far_from_a_fragment_on(then):
    """The past that was kept for the views before is longer, or of further columns."""
    before = {"a": view_of("obs", "-3:-1"), "b": view_of("actions", -2)}
    runners = [runner_with(name, 2, before) for name in (None, "SimpleListCollector")]
    for runner in runners:
        collect(runner, [5])
        runner.policy.view_requirements = {"obs": ViewRequirement(), **then}
    assert_equal_batches(*(collect(runner, [4])[0].batch for runner in runners))


class Counting(SimpleListCollector):
    """Counts what it is asked for."""

    calls: list[str] = []  # noqa: RUF012 - of all instances

    def add_step(self, *arguments, **further):
        Counting.calls.append("step")
        super().add_step(*arguments, **further)

    def build(self, *arguments, **further):
        Counting.calls.append("build")
        return super().build(*arguments, **further)


def test_a_collector_of_ones_own_is_named_by_its_import_path():
    Counting.calls.clear()
    collect(runner_with(f"{__name__}:Counting", 2), [5, 4])
    assert Counting.calls == ["step"] * 5 + ["build"] + ["step"] * 4 + ["build"]
    assert issubclass(Counting, rlrun.SampleCollector)
    assert rlrun.SimpleListCollector is SimpleListCollector


def test_both_warn_of_an_episode_that_does_not_end(monkeypatch, caplog):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)
    runner = runner_with(
        "SimpleListCollector", 1, env={"length": 50}, batch_mode="complete_episodes"
    )
    collect(runner, [1, 1])
    assert [r.message for r in caplog.records if "held back" in r.message] == [
        "21 steps of each environment are held back until an episode ends; "
        "env_runners.batch_mode: truncate_episodes does not wait for that"
    ]


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
    play_episodes(runner, num_episodes=2, seed=3)
    for (_, step), seen in runner.policy.saw.items():
        assert seen["prev_infos"] == ({"t": step} if step % 2 else {})
        assert seen["prev_t"].tolist() == [max(step - 2, 0), max(step - 1, 0)]


@pytest.mark.parametrize(("shift", "source"), [(1, "obs"), (0, "rewards"), (0, "infos")])
def test_what_is_not_known_yet_cannot_be_acted_on(shift, source):
    with pytest.raises(ValueError, match=r"not known (yet|when)"):
        runner_with(
            None, 1, {"x": ViewRequirement(source, shift=shift, used_for_compute_actions=True)}
        )

"""Whatever collects the agents' trajectories, the batches are the same."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_multi_agent_env_runner import MLP, cartpole, make, sample

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import ConnectorsConfig, ModelConfig, TrainingConfig
from rlrun.data.view_requirement import ViewRequirement
from rlrun.sampling.runner_messages import SampleRequest
from rlrun.sampling.simple_list_collector import SimpleListCollector

SOURCES = ("obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "infos", "mark")
SOURCES += ("t", "env_id", "agent_index")
SHIFTS = st.one_of(
    st.integers(-3, 2),
    st.lists(st.integers(-3, 2), min_size=1, max_size=3),
    st.builds(lambda first, n: f"{first}:{first + n}", st.integers(-3, 1), st.integers(0, 2)),
)
VIEWS = st.dictionaries(
    st.sampled_from(["x", "y", "z"]),
    st.builds(
        lambda source, shift: ViewRequirement(source, shift=shift), st.sampled_from(SOURCES), SHIFTS
    ),
    max_size=3,
)


class Counting(SimpleListCollector):
    """Counts transitions."""

    transitions = 0  # of all instances

    def add_step(self, *arguments, slots, **further):
        Counting.transitions += len(slots)
        super().add_step(*arguments, slots=slots, **further)


COLLECTORS = (None, "SimpleListCollector")


def crowd(collector, views, *, states, policies, env=None, **settings):
    kwargs = {"states": states, **({"views": views} if views else {})}
    policy = PolicySettings(ModelConfig(), TrainingConfig(), use="crowd:Watchful", kwargs=kwargs)
    table = {"a": policies[0], "*": policies[-1]}
    return make(
        {"use": "crowd:Crowd", **(env or {})},
        dict.fromkeys(policies, policy),
        table,
        spec={
            "connectors": ConnectorsConfig(clip_rewards=2.0),
            "restart_failed_sub_environments": True,
        },
        sample_collector=collector,
        **settings,
    )


def assert_equal_replies(one, other):
    assert one.episodes == other.episodes
    assert (one.env_steps, one.faulty_episodes) == (other.env_steps, other.faulty_episodes)
    batches = [reply.batch.as_multi_agent().policy_batches for reply in (one, other)]
    assert batches[0].keys() == batches[1].keys()
    for policy_id, batch in batches[0].items():
        twin = batches[1][policy_id]
        batch.check_valid()
        twin.check_valid()
        assert batch.keys() == twin.keys()
        assert batch.max_seq_len == twin.max_seq_len
        for name in batch:
            assert batch[name].dtype == twin[name].dtype, name
            np.testing.assert_array_equal(batch[name], twin[name], err_msg=name)


# A state before anybody has a past: no rows of objects, which still have a shape.
@example(
    lanes=1,
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
@settings(max_examples=25, deadline=None)
@given(
    lanes=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    views=VIEWS,
    states=st.booleans(),
    policies=st.sampled_from([("p",), ("p", "q")]),
    mode=st.sampled_from(["truncate_episodes", "complete_episodes"]),
    horizon=st.sampled_from([{}, {"horizon": 4}, {"horizon": 3, "soft_horizon": True}]),
    crash=st.sampled_from([0.0, 0.05]),
    by_agent=st.booleans(),
    restored=st.booleans(),
)
def test_all_collectors_make_the_same_batches(
    *, lanes, lengths, views, states, policies, mode, horizon, crash, by_agent, restored
):
    def build(collector):
        more = {"lanes": lanes, "by_agent": by_agent, "batch_mode": mode, "env": {"crash": crash}}
        return crowd(collector, views, states=states, policies=policies, **more, **horizon)

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


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_columns_that_are_left_out_are_not_sent(collector, mode):
    full, lean = (
        crowd(collector, {}, states=False, policies=("p", "q"), lanes=2, batch_mode=mode)
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


def test_a_collector_of_ones_own_gets_every_transition():
    Counting.transitions = 0
    runner = cartpole({"p": MLP}, sample_collector=f"{__name__}:Counting")
    rows = sum(sample(runner, k, 10).batch.agent_steps() for k in range(2))
    assert Counting.transitions == rows


def test_infos_are_there_where_a_view_asks_for_them():
    views = {"told": ViewRequirement("infos"), "told_before": ViewRequirement("infos", shift=-1)}
    batches = [
        sample(crowd(None, asked, states=False, policies=("p",), env={"end": 0.05}), 0, 60).batch[
            "p"
        ]
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


@pytest.mark.parametrize("collector", COLLECTORS)
def test_unroll_ids_of_several_agents_cannot_be_viewed(collector):
    views = {"x": ViewRequirement("unroll_id", shift=-1)}
    with pytest.raises(ValueError, match=r"view 'x': with several agents .* 'unroll_id'"):
        crowd(collector, views, states=False, policies=("p",))

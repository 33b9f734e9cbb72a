"""Complete episodes: whole, in order, as few as do."""

from functools import partial

import pytest
from agent_runners import MLP, make, sample
from counting_envs import CountingEnv, collect, counting_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_policy import RecordingPolicy, check_views

from rlrun.config.batch_arithmetic import fragment_lengths, fragment_problems
from rlrun.config.schema import EnvRunnersConfig
from rlrun.sampling import sample_collector
from rlrun.sampling.env_runner import EnvRunner


def whole_runner(num_envs, *, collector=None, **env):
    settings = {"batch_mode": "complete_episodes", "sample_collector": collector}
    policy = partial(RecordingPolicy, states=True)
    return EnvRunner(counting_spec(num_envs, policy=policy, settings=settings, **env))


def test_the_documented_example():
    """Fragments of 100 from episodes of 98 steps: two episodes, 196 steps."""
    reply = collect(whole_runner(1, length=98), [100])[0]
    assert reply.env_steps == len(reply.batch) == 196
    assert reply.batch["terminateds"].nonzero()[0].tolist() == [97, 195]


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_all_episodes_that_end_in_the_same_step_are_counted(collector):
    reply = collect(whole_runner(3, collector=collector, length=5), [5])[0]
    assert reply.env_steps == len(reply.batch) == 15


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_each_fragment_counts_its_own_episodes(collector):
    replies = collect(whole_runner(1, collector=collector, length=5), [5, 6, 10, 11])
    assert [reply.env_steps for reply in replies] == [5, 10, 10, 15]


@settings(max_examples=25)
@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    own_reset=st.booleans(),
)
def test_batches_hold_whole_episodes(num_envs, lengths, own_reset):
    if own_reset:
        runner = whole_runner(num_envs, use="counting_envs:autonomous")
    else:
        runner = whole_runner(num_envs, random_length=True)
    batches, finished = [], []
    last: dict[int, int] = {}
    for length in lengths:
        reply = collect(runner, [length])[0]
        batch = reply.batch
        batches.append(batch)
        assert reply.env_steps == len(batch) >= length * num_envs
        finished += reply.episodes
        for episode in batch.split_by_episode("eps_id"):
            assert episode["t"].tolist() == list(range(len(episode)))
            ends = episode["terminateds"] | episode["truncateds"]
            assert ends.tolist() == [False] * (len(episode) - 1) + [True]
            env_index = int(episode["env_id"][0])
            number = int(episode["eps_id"][0]) & 0xFFFFFFFF
            assert number == last.get(env_index, -1) + 1, "older episodes first, none left out"
            last[env_index] = number
        check_views(runner, batches, batch)
        # As few steps as do: without the episodes that ended last it would not be enough.
        assert (
            len(batch) - sum(sorted(e.length for e in reply.episodes)[-num_envs:])
            < length * num_envs
        )
    assert sum(len(batch) for batch in batches) == sum(e.length for e in finished)


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_a_fragment_that_only_grows_is_warned_of(monkeypatch, caplog, collector):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)
    collect(whole_runner(1, length=100, collector=collector), [1])
    assert "held back until an episode ends" in caplog.text


@pytest.mark.parametrize("lengths", [[15], [1, 30, 60]])  # of one buffer, of one that grows
@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_an_episode_without_end_is_warned_of_once(monkeypatch, caplog, collector, lengths):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)

    class Uneven(CountingEnv):
        count = 0

        def __init__(self):
            super().__init__(length=2 if Uneven.count else 10**6)
            Uneven.count += 1

    monkeypatch.setitem(globals(), "Uneven", Uneven)
    runner = whole_runner(2, collector=collector, use=f"{__name__}:Uneven")
    collect(runner, lengths)
    warnings = [record.message for record in caplog.records if "held back" in record.message]
    assert len(warnings) == 1
    assert "truncate_episodes does not wait" in warnings[0]


def test_the_most_that_is_held_back_is_not_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)
    (actor,) = whole_runner(1, length=100).actors.values()
    actor.collector.warn_if_large(20)
    assert "held back" not in caplog.text
    actor.collector.warn_if_large(21)
    assert "21 steps" in caplog.text


@pytest.mark.parametrize("length", [5, 7])  # of episodes, which fill the fragment or exceed it
@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_a_long_fragment_of_short_episodes_is_not_warned_of(monkeypatch, caplog, collector, length):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)
    collect(whole_runner(1, length=length, collector=collector), [100])
    assert "held back" not in caplog.text


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
@pytest.mark.parametrize(("length", "warned"), [(300, True), (20, False)])
def test_long_episodes_of_several_agents_are_warned_of_too(
    monkeypatch, caplog, collector, length, warned
):
    monkeypatch.setattr(sample_collector, "MOST_HELD", 20)
    endless = {"use": "random_agents:RandomAgents", "silence": 0, "leaving": 0, "end": 0}
    settings = {"horizon": length, "batch_mode": "complete_episodes", "sample_collector": collector}
    sample(make(endless, {"p": MLP}, **settings), 0, 300)
    assert ("held back until an episode ends" in caplog.text) is warned


@pytest.mark.parametrize("runners", [0, 1, 3])
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("length", ["auto", 7])
def test_rounds_ask_for_at_least_the_train_batch(runners, num_envs, length):
    config = EnvRunnersConfig(
        num_env_runners=runners,
        num_envs_per_env_runner=num_envs,
        rollout_fragment_length=length,
        batch_mode="complete_episodes",
    )
    assert not list(fragment_problems(101, config))
    rounds = fragment_lengths(101, config)
    steps = sum(map(sum, rounds)) * num_envs
    one_round = sum(rounds[0]) * num_envs
    assert steps - one_round < 101 <= steps

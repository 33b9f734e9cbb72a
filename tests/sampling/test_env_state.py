"""Environments that hand out their state are given it back; others repeat their actions."""

import json
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import MLP, make, sample
from stateful_envs import Unchanging, Walk

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data.seeding import Role
from rlrun.envs.multi_agent_env import MultiAgentEnv
from rlrun.sampling import agent_envs
from rlrun.sampling.agent_envs import RecordedEpisode
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.episode_replay import log_replay
from rlrun.sampling.episodes import EndlessPlan, LockStepEpisodes
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

WALK = "stateful_envs:Walk"
WRAPPERS = [
    {"use": "TimeLimit", "max_episode_steps": 17},
    "stateful_envs:Halved",
    {"use": "TimeLimit", "max_episode_steps": 13},
]
SOFT = {"horizon": 5, "soft_horizon": True}
PROCESSES = {"gym_env_vectorize_mode": "async"}
faults = pytest.mark.faults


class Endless(MultiAgentEnv):
    """Counts its steps, for ever."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Box(0.0, np.inf, (1,)))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self._time = 0
        return self._seen(), {}

    def _seen(self):
        return {agent: np.array([self._time], np.float32) for agent in self.possible_agents}

    def step(self, actions):
        self._time += 1
        return self._seen(), {}, {}, {}, {}


def walks(use=WALK, *, longest=100_000, fault=None, num_envs=2, spec=None, **settings):
    """A runner of one agent each."""
    env = EnvSpec(use=use, kwargs={} if fault is None else {"fault": fault})
    settings = EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings)
    return EnvRunner(RunnerSpec(env, settings, max_replayed_env_steps=longest, **(spec or {})))


def agents(*, longest=100_000, fault=None, **settings):
    """A runner of two agents."""
    env = {"use": "stateful_envs:two_walks", **({} if fault is None else {"fault": fault})}
    spec = {"max_replayed_env_steps": longest}
    return make(env, {"p": MLP}, num_envs=2, spec=spec, **settings)


def turns(*, longest=100_000, **settings):
    """A runner of two policies, one of which waits when the fragment ends."""
    env, policies = "stateful_envs:Turns", {"player_0": MLP, "player_1": MLP}
    table, spec = {name: name for name in policies}, {"max_replayed_env_steps": longest}
    return make(env, policies, table, spec=spec, **settings)


def restored(runner, other, fragments=(7, 8)):
    """The state of a runner in the middle of episodes, in another one."""
    for fragment, length in enumerate(fragments):
        sample(runner, fragment, length)
    document, arrays = encode(runner.get_state())
    other.set_weights(runner.get_weights())
    other.set_state(decode(json.loads(json.dumps(document)), arrays))


def assert_equal_fragments(runner, other, first=2):
    for fragment in range(first, first + 4):
        one, two = (sample(each, fragment, 9) for each in (runner, other))
        assert one.episodes == two.episodes
        batches = [reply.batch.as_multi_agent().policy_batches.values() for reply in (one, two)]
        for left, right in zip(*batches, strict=True):
            assert left.keys() == right.keys()
            for name, column in left.items():
                np.testing.assert_array_equal(column, right[name], name)


@pytest.mark.parametrize(
    ("make_runner", "settings"),
    [
        (walks, {}),
        (walks, {"env_wrappers": WRAPPERS}),
        (walks, {"disable_env_checking": True}),
        (walks, {"use": "stateful_envs:Walks"}),
        (agents, {}),
        (agents, SOFT),
        (turns, {}),
        pytest.param(walks, {**PROCESSES, "env_wrappers": WRAPPERS}, marks=faults),
        pytest.param(agents, PROCESSES, marks=faults),
        pytest.param(walks, {"remote_worker_envs": True, "num_envs": 1}, marks=faults),
    ],
)
@pytest.mark.parametrize("longest", [0, 100_000])
def test_a_runner_goes_on_from_the_states_of_its_environments(
    request, make_runner, settings, longest
):
    """However long the episodes are: none of their steps is repeated."""
    if "remote_worker_envs" in settings:
        request.getfixturevalue("local_ray")
    runner, other = (make_runner(longest=longest, **settings) for _ in range(2))
    before = Walk.steps_of_all
    restored(runner, other)
    sample(other, 2, 3)
    restored(runner, other, ())  # in the middle of other episodes, too
    assert Walk.steps_of_all - before in (0, 2 * 18, 2 * 2 * 18)  # elsewhere, and of two agents
    assert_equal_fragments(runner, other)
    runner.stop()
    other.stop()


def test_steps_are_counted_from_the_row_at_which_an_episode_replaces_a_dropped_one():
    episodes = LockStepEpisodes(EndlessPlan(0, Role.TRAIN, 0), 2, 100)
    assert episodes.steps(3).tolist() == [3, 3]
    episodes.drop([1], t=3)
    assert episodes.steps(5).tolist() == [5, 2]


@pytest.mark.parametrize("make_runner", [walks, agents])
def test_no_environment_is_asked_for_its_state_before_its_first_reset(make_runner):
    runner = make_runner(fault="raises", disable_env_checking=True)
    runner.set_state(runner.get_state())


@pytest.mark.parametrize("make_runner", [walks, agents])
@pytest.mark.parametrize(
    ("fault", "wrappers", "reason"),
    [
        ("forgets", [], "set_state(get_state()) does not reproduce step 1"),
        ("raises", [], "ValueError: no state today"),
        ("cannot be saved", [], "a checkpoint stores numbers"),
        (None, [{"use": "StickyAction", "repeat_action_probability": 0.5}], "the wrapper Sticky"),
        (None, [{"use": "DelayObservation", "delay": 12}], "the wrapper DelayObservation"),
        (None, [{"use": "FrameStackObservation", "stack_size": 2}], "FrameStackObservation around"),
    ],
)
def test_a_state_that_is_not_whole_is_named_and_not_used(
    make_runner, fault, wrappers, reason, caplog
):
    """The actions are repeated instead, to the bit."""
    if make_runner is agents and fault is None:
        pytest.skip("these wrappers are of single environments")
    runner, other = (make_runner(fault=fault, env_wrappers=wrappers) for _ in range(2))
    assert caplog.text.count(reason) == 2
    assert "get_state() and set_state(), which are not used" in caplog.text
    before = Walk.steps_of_all
    restored(runner, other)
    assert Walk.steps_of_all - before >= 2 * 2 * 15
    assert_equal_fragments(runner, other)
    assert "fresh episode" not in caplog.text


@pytest.mark.parametrize("make_runner", [walks, agents, partial(agents, **SOFT)])
def test_an_episode_that_is_too_long_to_be_repeated_is_told_of_once_and_begins_afresh(
    make_runner, caplog
):
    """But for soft horizons, between which episodes are short."""
    runner, other = (make_runner(longest=14, fault="raises") for _ in range(2))
    caplog.clear()
    restored(runner, runner, (7, 7))
    assert not caplog.text
    restored(runner, other, (2, 2))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 + (make_runner in (walks, agents))
    assert "an episode has 16 env steps" in told[0] or len(told) == 2
    assert "sub-env 1 of runner 0: its episode has 18 env steps, too many" in told[-1]
    for policy_batch in sample(other, 4, 2).batch.as_multi_agent().policy_batches.values():
        assert set(policy_batch["t"].tolist()) == {0, 1}


def test_actions_of_an_episode_that_is_too_long_to_be_repeated_are_not_kept(monkeypatch):
    recorded = []

    class Recorded(RecordedEpisode):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            recorded.append(self)

    monkeypatch.setattr(agent_envs, "RecordedEpisode", Recorded)
    runner = agents(longest=14, fault="raises")
    for fragment, (length, num_agents) in enumerate([(7, 2), (7, 2), (2, 0)]):
        runner.sample_fragment(SampleRequest(fragment, length))
        assert [len(episode.actions) for episode in recorded] == [num_agents] * 2


def test_an_episode_of_equal_observations_that_is_too_long_to_be_repeated_begins_afresh(caplog):
    runner, other = (walks("stateful_envs:Unchanging", longest=5, num_envs=1) for _ in range(2))
    restored(runner, other, (15,))
    assert "its episode has 15 env steps, too many to repeat" in caplog.text
    batch = sample(other, 1, 3).batch
    assert batch["t"].tolist() == [0, 1, 2]
    assert batch["rewards"].tolist() == [1, 2, 3]


def test_actions_are_kept_up_to_the_length_that_is_still_repeated_in_each_episode():
    episodes = LockStepEpisodes(EndlessPlan(0, Role.TRAIN, 0), 1, max_replayed=3)
    episodes.end([0], 2, np.zeros((2, 1)))  # the next episode begins
    actions = np.arange(5)[:, None]
    episodes.end_fragment(5, np.zeros((5, 1)), actions)
    assert episodes.actions()[0].tolist() == [2, 3, 4]
    episodes.end_fragment(1, np.zeros((1, 1)), actions[:1])
    assert episodes.actions() == [None]


def test_what_agents_saw_is_saved_where_environments_go_on_from_their_states_alone():
    for fault, is_saved in ((None, True), ("raises", False)):
        runner = agents(fault=fault)
        sample(runner, 0, 7)
        assert (runner.get_state()["due"]["p"]["raw"] is not None) is is_saved


def test_an_older_state_is_repeated_up_to_the_length_that_is_still_repeated(caplog):
    """Without what it lacks: steps of episodes since the reset, and actions without an answer."""
    runner, other = (agents(longest=14, fault="raises") for _ in range(2))
    for fragment in range(2):
        sample(runner, fragment, 7)
    state = runner.get_state()
    for sub_env in state["envs"]:
        del sub_env["unanswered"]
        for episode in sub_env["recorded"]:
            del episode["before"]
    other.set_weights(runner.get_weights())
    other.set_state(state)
    assert "fresh episode" not in caplog.text
    assert_equal_fragments(runner, other)


def test_an_env_that_raises_while_its_actions_are_repeated_begins_afresh(caplog, monkeypatch):
    spec = {"restart_failed_sub_environments": True}
    runner, other = (walks("stateful_envs:Unchanging", spec=spec) for _ in range(2))
    sample(runner, 0, 15)
    monkeypatch.setattr(Unchanging, "raises", True)
    restored(runner, other, ())
    assert caplog.text.count("starts a fresh episode") == 2
    monkeypatch.undo()
    batch = sample(other, 1, 3).batch
    assert batch["t"].tolist() == [0, 1, 2] * 2
    assert batch["rewards"].tolist() == [1, 2, 3] * 2


def test_an_environment_that_is_never_reset_leaves_a_state_of_the_same_size():
    """Also once there are too many steps since its reset to be repeated, over soft horizons."""
    runner = make("test_env_state:Endless", {"p": MLP}, spec={"max_replayed_env_steps": 14}, **SOFT)
    sizes = []
    for fragment in range(6):
        sample(runner, fragment, 20)
        document, arrays = encode(runner.get_state())
        sizes.append((len(str(document)), len(arrays)))
    assert max(sizes[1:]) <= (sizes[0][0] + 100, sizes[0][1])
    (env,) = runner.get_state()["envs"]
    assert len(env["recorded"]) == 1, "of episodes that are not repeated the running one is left"


def test_episodes_that_begin_afresh_in_a_runner_that_has_sampled_are_counted_from_there():
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), max_replayed_env_steps=3))
    sample(runner, 0, 8)
    runner.set_state(runner.get_state())
    reply = sample(runner, 1, 200)
    episodes, (ends,) = reply.episodes, np.nonzero(reply.batch["terminateds"])
    assert [episode.length for episode in episodes] == np.diff([-1, *ends]).tolist()
    assert [episode.episode_return for episode in episodes] == [e.length for e in episodes]


@pytest.mark.parametrize(("index", "told"), [(0, 1), (1, 1), (2, 0)])
def test_the_first_runner_alone_tells_of_an_episode_that_is_too_long(index, told, caplog):
    runner = EnvRunner(
        RunnerSpec(EnvSpec(use="CartPole-v1"), max_replayed_env_steps=3), runner_index=index
    )
    sample(runner, 0, 4)
    assert caplog.text.count("an episode has 4 env steps") == told


def test_episodes_that_no_actions_bring_back_are_never_too_long(caplog):
    """A vector that resets its own sub-environments starts over after a resume."""
    runner = walks("counting_envs:autonomous", longest=1)
    longest = [
        runner.sample_fragment(SampleRequest(k, 1)).longest_running_episode for k in range(9)
    ]
    assert max(longest) > 1
    assert "an episode has" not in caplog.text


@pytest.mark.parametrize(
    ("lengths", "told"),
    [([10_000, 9, 20_001], None), ([10_001, 9, 20_001], "10,001"), ([12_000, 20_000], "20,000")],
)
def test_what_many_repeated_steps_cost_is_told_by_the_longest_of_them(lengths, told, caplog):
    """Of the episodes that are not too long to be repeated."""
    log_replay(SimpleNamespace(max_replayed=20_000), [], lengths, "Slow-v0", 0)
    message = f"Slow-v0: up to {told} env steps of each running episode were repeated; get_state() "
    expected = [] if told is None else [message + "and set_state() would spare that"]
    assert [record.getMessage() for record in caplog.records] == expected


def test_an_episode_of_the_length_that_is_still_repeated_is_not_too_long(caplog):
    log_replay(SimpleNamespace(max_replayed=14), [0, 1], [14, 15], "Strays-v0", 0)
    first, second = [record.getMessage() for record in caplog.records]
    assert "sub-env 0 of runner 0: repeating the episode's actions led to another" in first
    assert "an env that a callback changes needs get_state() and set_state()" in first
    assert "sub-env 1 of runner 0: its episode has 15 env steps, too many to repeat" in second
    assert "(fault_tolerance.max_replayed_env_steps=14), it starts a fresh episode" in second

"""Views and states, when acting and in training, against a slow transcription."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from counting_envs import collect
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recording_policy import RecordingPolicy, check_views, recording_runner

from rlrun.config.policies import PolicySettings
from rlrun.config.schema import (
    ConnectorsConfig,
    EnvRunnersConfig,
    EnvSpec,
    ModelConfig,
    TrainingConfig,
)
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.policy import Policy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest


@settings(max_examples=25)
@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    states=st.booleans(),
    random_length=st.booleans(),
)
@example(num_envs=3, lengths=[7, 3, 1, 8], states=False, random_length=True)
def test_views_are_their_slow_transcription(num_envs, lengths, states, random_length):
    runner = recording_runner(num_envs, states=states, random_length=random_length, length=7)
    batches = []
    for i, length in enumerate(lengths):
        batches.append(collect(runner, [length])[0].batch)
        check_views(runner, batches, batches[i])


@pytest.mark.parametrize("states", [False, True])
def test_environments_that_reset_in_a_step_of_their_own(states):
    """Sub-environments then fill up unevenly, and rows are kept from fragment to fragment."""
    runner = recording_runner(3, states=states, use="counting_envs:autonomous")
    assert not runner.envs.every_step_counts
    batches = []
    lengths = {}
    for length in (1, 4, 2, 5, 3):
        reply = collect(runner, [length])[0]
        batches.append(reply.batch)
        assert len(reply.batch) == 3 * length
        check_views(runner, batches, batches[-1])
        if length != 3:  # the last one's final rows may come in the next
            lengths |= {episode.episode_id: episode.length for episode in reply.episodes}
    ids = np.concatenate([batch["eps_id"] for batch in batches])
    assert len(lengths) > 5
    assert all((ids == episode).sum() == length for episode, length in lengths.items())


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_evaluation_shows_the_policy_the_same_views(num_envs, truncates):
    """Also past the window that evaluation keeps: the episodes are longer than it."""
    runner = recording_runner(num_envs, states=True, length=300, truncates=truncates)
    run_episodes(runner, range(3), seed=4)
    for (seed, step), row in runner.policy.saw.items():
        assert row["state_in_0"].tolist() == [7, step]
        assert row["prev_rewards"] == step
        assert row["older_rewards"].tolist() == [max(step - k, 0) for k in (3, 2, 1)]
        assert row["frames"].tolist() == [[seed, max(step - k, 0)] for k in (3, 2, 1, 0)]
        assert row["prev_actions"] == ((seed + step - 1) % 2 if step else 0)


def test_views_of_a_living_policy_may_be_edited():
    runner = recording_runner(2, length=20)
    first = collect(runner, [6])[0].batch
    assert "next_rewards" not in first
    runner.policy.view_requirements["next_rewards"] = ViewRequirement("rewards", shift=1)
    runner.policy.view_requirements["far_frame"] = ViewRequirement("obs", shift=-6)
    second = collect(runner, [4])[0].batch
    rewards = second["rewards"][:4]
    assert second["next_rewards"][:4].tolist() == [*rewards[1:], 0]
    # What was thrown away before anybody wanted it stays unknown: the oldest one stands in.
    assert second["far_frame"][:4, 1].tolist() == [2, 2, 2, 3]


def test_frames_are_stored_once():
    """A stack of four by view: an index, where a wrapper stores every frame four times."""
    runner = recording_runner(4, length=50)
    batch = collect(runner, [64])[0].batch
    storage, index = batch.shared("frames")
    assert storage is batch.shared("obs")[0] is batch.shared("new_frames")[0]
    assert index.shape == (256, 4)


def test_a_policy_without_views_keeps_no_past():
    runner = recording_runner(2)
    runner.policy.view_requirements = {"obs": ViewRequirement()}
    collect(runner, [3])
    assert runner.get_state()["policies"]["default_policy"]["collector"]["past"] == {}


def test_what_a_policy_computes_for_batches_is_computed_where_it_is_sent():
    """All of it in the first fragment, which shows what there is."""
    runner, calls = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig())), []
    compute = runner.policy.fragment_columns
    runner.policy.fragment_columns = lambda *args, **how: calls.append(1) or compute(*args, **how)
    for fragment, unsent in enumerate([(), ("action_logp",), ("action_logp",), ()]):
        leave_out = {"default_policy": frozenset(unsent)}
        batch = runner.sample_fragment(SampleRequest(fragment, 4, leave_out=leave_out)).batch
        assert ("action_logp" in batch) is not bool(unsent)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["nothing", "state_out_2", "state_out_last"])
def test_unknown_columns_are_named(name):
    runner = recording_runner(1, states=True)
    runner.policy.view_requirements["x"] = ViewRequirement(name, shift=-1)
    with pytest.raises(KeyError, match=f"view 'x': there is no column '{name}' to view"):
        collect(runner, [3])


@pytest.mark.parametrize("shape", [None, (), (3,)])
def test_a_view_of_what_the_policy_puts_out_must_have_its_shape(shape):
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1")))
    space = None if shape is None else gym.spaces.Box(-9, 9, shape)
    view = ViewRequirement("action_dist_inputs", space=space, shift=-1)
    runner.policy.view_requirements["x"] = view
    with pytest.raises(ValueError, match=r"'x': .* shape \(2,\), not \((3,)?\) as its space"):
        collect(runner, [3])


def test_rewards_are_seen_as_they_are_learned_from():
    runner = EnvRunner(
        RunnerSpec(
            EnvSpec(use="counting_envs:CountingEnv", kwargs={"length": 6}),
            EnvRunnersConfig(num_envs_per_env_runner=2),
            connectors=ConnectorsConfig(clip_rewards=2.0),
            policy_factory=lambda o, a, m: RecordingPolicy(o, a),
        )
    )
    batch = collect(runner, [6])[0].batch
    assert batch["rewards"][:6].tolist() == [1, 2, 2, 2, 2, 2]
    assert batch["prev_rewards"][:6].tolist() == [0, 1, 2, 2, 2, 2]
    assert {int(row["prev_rewards"]) for row in runner.policy.saw.values()} == {0, 1, 2}


class Pictures(gym.Env):
    """Frames of Pong's size, none like another."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, channels=True):
        shape = (84, 84, 1) if channels else (84, 84)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._frame(), {}

    def step(self, action):
        self.t += 1
        return self._frame(), 0.0, self.t >= 11, False, {}

    def _frame(self):
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def stacked_pictures():
    return gym.wrappers.FrameStackObservation(Pictures(channels=False), 4, padding_type="reset")


class Idle(Policy):
    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        return np.zeros(len(input_dict["obs"]), np.int64), [], {}

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.zeros(len(obs_batch), np.int64), [], {}


def test_frames_stacked_by_view_are_the_wrappers_in_a_quarter_of_the_bytes():
    def runner(use):
        return EnvRunner(
            RunnerSpec(
                EnvSpec(use=f"{__name__}:{use}"),
                EnvRunnersConfig(num_envs_per_env_runner=2),
                policy_factory=lambda o, a, m: Idle(o, a),
            )
        )

    by_view, by_wrapper = runner("Pictures"), runner("stacked_pictures")
    by_view.policy.view_requirements["obs"] = ViewRequirement(shift="-3:0")
    for length in (40, 25):
        viewed, wrapped = (collect(r, [length])[0].batch for r in (by_view, by_wrapper))
        for name in ("obs", "new_obs"):
            np.testing.assert_array_equal(viewed[name][..., 0], wrapped[name])
        frames = viewed.shared("obs")[0].nbytes
        assert viewed.size_bytes() < 0.3 * wrapped.size_bytes()
        sent = [len(pickle.dumps(batch, protocol=5)) for batch in (viewed, wrapped)]
        assert sent[0] < 0.3 * sent[1], "on the wire, too"
        # The steps, those that ended, and three of the fragment before; the rest is indices.
        ends = int(viewed["terminateds"].sum())
        assert frames == 84 * 84 * (2 * (length + 1 + 3) + ends)


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
def test_a_view_of_the_states_after_each_step_reaches_the_batch(collector):
    settings = EnvRunnersConfig(num_envs_per_env_runner=2, sample_collector=collector)
    model = ModelConfig(use_lstm=True, lstm_cell_size=3, max_seq_len=1)
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), settings, model=model))
    after = ViewRequirement(used_for_compute_actions=False)
    runner.policy.view_requirements["state_out_1"] = after
    batch = runner.sample_fragment(SampleRequest(0, 40)).batch
    assert "state_out_0" not in batch
    goes_on = batch["eps_id"][1:] == batch["eps_id"][:-1]
    before_next = batch["state_in_1"][1:]
    np.testing.assert_array_equal(batch["state_out_1"][:-1][goes_on], before_next[goes_on])
    assert not (~goes_on).all()
    assert batch["state_out_1"].any()


class Frames(Idle):
    """Is shown frames in place of single observations, and keeps them."""

    def __init__(self, *spaces):
        super().__init__(*spaces)
        self.view_requirements["obs"] = ViewRequirement(shift="-3:0")
        self.saw = []

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        self.saw.append(input_dict["obs"].copy())
        return super().compute_actions_from_input_dict(input_dict)


def test_the_input_of_one_step_is_what_the_policy_saw():
    env = EnvSpec(use="counting_envs:CountingEnv", kwargs={"length": 5})
    runner = EnvRunner(RunnerSpec(env, policy_factory=lambda o, a, m: Frames(o, a)))
    views = runner.policy.view_requirements
    batches = [runner.sample_fragment(SampleRequest(i, 8)).batch for i in range(2)]
    for step, saw in enumerate(runner.policy.saw):
        batch, index = batches[step // 8], step % 8
        found = batch.get_single_step_input_dict(views, index)
        np.testing.assert_array_equal(found["obs"], saw)
    np.testing.assert_array_equal(
        batches[0].get_single_step_input_dict(views)["obs"], runner.policy.saw[8]
    )


@pytest.mark.parametrize("keeps_states", [False, True])
def test_a_state_inside_a_sequence_is_the_one_that_acted_or_is_missed(keeps_states):
    model = ModelConfig(use_lstm=True, lstm_cell_size=3, max_seq_len=3)
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), model=model))
    views = runner.policy.view_requirements
    if keeps_states:
        after = ViewRequirement(used_for_compute_actions=False)
        views.update(state_out_0=after, state_out_1=after)
    shape = runner.policy.get_weights().shape
    runner.policy.set_weights(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    batch = runner.sample_fragment(SampleRequest(0, 40)).batch
    starts = np.cumsum(batch["seq_lens"]) - batch["seq_lens"]
    for index in (*range(40), "last"):
        if not keeps_states and index not in starts:
            with pytest.raises(ValueError, match=f"'state_in_0' only at .* step {index} is none"):
                batch.get_single_step_input_dict(views, index)
            continue
        found = batch.get_single_step_input_dict(views, index)
        _, _, extras = runner.policy.compute_actions_from_input_dict(found)
        if index != "last":
            acted = batch["action_dist_inputs"][index]
            np.testing.assert_allclose(extras["action_dist_inputs"][0], acted, rtol=1e-4)
    if keeps_states:
        np.testing.assert_array_equal(found["state_in_0"][0], batch["state_out_0"][-1])


class Miscounts(Idle):
    """Answers as many rows as its class says."""

    num_actions = num_values = 3

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.zeros(self.num_actions, np.int64), [], {"v": np.zeros(self.num_values)}


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("num_actions", r"Miscounts\.compute_actions\(\) was given 3 rows and returned {} actions"),
        ("num_values", r"compute_actions\(\) was given 3 rows and returned 'v' of shape \({},\)"),
    ],
)
@pytest.mark.parametrize("env", ["CartPole-v1", "MultiAgentCartPole"])
def test_a_policy_with_too_few_or_too_many_rows_is_named(monkeypatch, env, what, says, num):
    """A single one, which numpy would copy to all rows, as well."""
    monkeypatch.setattr(Miscounts, what, num)
    settings = EnvRunnersConfig(num_envs_per_env_runner=3)
    if env == "CartPole-v1":
        make = {"policy_factory": lambda o, a, m: Miscounts(o, a)}
    else:
        use = f"{__name__}:Miscounts"
        own = PolicySettings(ModelConfig(), TrainingConfig(), use=use)
        make = {
            "multi_agent": MultiAgentSpec({"one": own, "two": own}, {"agent_0": "one", "*": "two"})
        }
    runner = EnvRunner(RunnerSpec(EnvSpec(use=env), settings, **make))
    with pytest.raises(ValueError, match=says.format(num)):
        collect(runner, [5])

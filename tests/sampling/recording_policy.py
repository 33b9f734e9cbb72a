"""A policy that keeps what it sees, and views against a slow transcription of whole episodes."""

import numpy as np

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.policy import Policy, state_views
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec

VIEWS = {
    "obs": ViewRequirement("obs"),
    "prev_actions": ViewRequirement("actions", shift=-1),
    "prev_rewards": ViewRequirement("rewards", shift=-1),
    "older_rewards": ViewRequirement("rewards", shift="-4:-2"),
    "frames": ViewRequirement("obs", shift="-3:0"),
    "old_frame": ViewRequirement("obs", shift=-2),
    "next_actions": ViewRequirement("actions", shift=1),
    "frames_ahead": ViewRequirement("obs", shift="0:2"),
}


class RecordingPolicy(Policy):
    """Acts on its views' sum, and keeps what it saw: (seed, step) of the observation -> views."""

    def __init__(self, observation_space, action_space, states=False):
        super().__init__(observation_space, action_space)
        self.states = states
        self.view_requirements = dict(VIEWS)
        if states:
            self.view_requirements.update(state_views(self.get_initial_state(), 3))
        self.saw = {}

    def get_initial_state(self):
        return [np.array([7.0, 0.0], np.float32)] if self.states else []

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        return self.look(input_dict)

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return self.look({"obs": obs_batch})

    def look(self, input_dict):
        obs = input_dict["obs"]
        for env_index, (seed, step) in enumerate(obs.astype(int).tolist()):
            row = {name: np.array(view[env_index]) for name, view in input_dict.items()}
            self.saw[seed, step] = row
        actions = obs.sum(-1).astype(np.int64) % 2
        states = []
        if self.states:  # counts the steps of the episode
            states = [input_dict["state_in_0"] + np.array([0, 1], np.float32)]
        return actions, states, {}


def recording_runner(num_envs, *, states=False, use="counting_envs:CountingEnv", **kwargs):
    return EnvRunner(
        RunnerSpec(
            EnvSpec(use=use, kwargs=kwargs),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs),
            policy_factory=lambda o, a, m: RecordingPolicy(o, a, states),
        )
    )


def slow_view(view, source, episode, step, known, dtype):
    """One row of a view, from the whole episode; `known` steps of it have been sampled."""
    rows = []
    for shift in view.steps:
        at = step + shift
        if source == "obs":
            limit = known + 1  # what the last step led to is known too
            row = episode[max(at, 0)] if at < limit else np.zeros(2, np.float32)
        else:
            row = episode[at] if 0 <= at < known else 0
        rows.append(row)
    return np.array(rows if view.time_axis else rows[0], dtype)


class Transcript:
    """All steps of all episodes, put together from the batches' plain columns."""

    def __init__(self, batches):
        self.rows = {}
        for batch in batches:
            for row in batch.rows():
                self.rows.setdefault(int(row["eps_id"]), []).append(row)

    def column(self, episode, source):
        rows = self.rows[episode]
        if source != "obs":
            return [row[source] for row in rows]
        return [row["obs"] for row in rows] + [rows[-1]["new_obs"]]


def check_views(runner, batches, batch):
    """Every view of the newest batch: what the transcript says, and what the policy saw."""
    transcript = Transcript(batches)
    batch.check_valid()
    for i in range(len(batch)):
        episode, step = int(batch["eps_id"][i]), int(batch["t"][i])
        known = len(transcript.rows[episode])
        saw = runner.policy.saw[tuple(batch["obs"][i].astype(int).tolist())]
        for name, view in VIEWS.items():
            source = view.data_col
            whole = transcript.column(episode, source)
            expected = slow_view(view, source, whole, step, known, batch[name].dtype)
            np.testing.assert_array_equal(batch[name][i], expected, err_msg=name)
            if view.is_acted_on(name):
                np.testing.assert_array_equal(saw[name], expected, err_msg=name)
                after = slow_view(view, source, whole, step + 1, known, batch[name].dtype)
                np.testing.assert_array_equal(batch[f"new_{name}"][i], after, err_msg=name)
    check_states(batch)


def check_states(batch):
    if "seq_lens" not in batch:
        return
    starts = np.cumsum(batch["seq_lens"]) - batch["seq_lens"]
    assert batch["seq_lens"].sum() == len(batch)
    assert batch["seq_lens"].max() <= 3
    assert "state_out_0" not in batch
    # The state counts the steps of the episode, from what it is initially.
    expected = np.stack([np.full(len(starts), 7), batch["t"][starts]], axis=1)
    np.testing.assert_array_equal(batch["state_in_0"], expected)
    for start, length in zip(starts, batch["seq_lens"], strict=True):
        assert len(set(batch["eps_id"][start : start + length])) == 1
        assert len(set(batch["unroll_id"][start : start + length])) == 1

"""Recorders of a rollout: ordered transitions, exact limits, missing extras."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from rlrun.config.problems import InputError
from rlrun.envs.recorded_step import AgentTransition, RecordedStep
from rlrun.experiment.recording import StepLimit, TransitionRecorder, VideoRecorder


def step(t, episodes, nested=False):
    obs = np.array([[t, env_index] for env_index in range(2)], np.float32)
    return RecordedStep(
        obs={"a": obs, "b": (obs, obs + 5)} if nested else obs,
        actions=np.array([t, t + 10]),
        next_obs={"a": obs + 1, "b": (obs, obs)} if nested else obs + 1,
        rewards=np.array([1.0, 2.0]),
        terminateds=np.array([False, t == 1]),
        truncateds=np.array([False, False]),
        episodes=episodes,
    )


def test_transitions_are_ordered_by_episode_without_surplus_episodes(tmp_path):
    recorder = TransitionRecorder()
    for t, episodes in enumerate([[0, 1], [0, 1], [0, None], [2, None]]):
        recorder(step(t, episodes))
    recorder.save(tmp_path / "deep" / "t.npz")
    with np.load(tmp_path / "deep" / "t.npz", allow_pickle=False) as columns:
        assert columns["episode"].tolist() == [0, 0, 0, 1, 1, 2]
        assert columns["obs"].tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [3, 0]]
        assert columns["next_obs"][0].tolist() == [1, 1]
        assert columns["action"].tolist() == [0, 1, 2, 10, 11, 3]
        assert columns["reward"].tolist() == [1, 1, 1, 2, 2, 1]
        assert columns["terminated"].tolist() == [False] * 4 + [True, False]
        assert columns["truncated"].dtype == np.bool_


def transition(episode, agent, t, obs, action=0):
    ends = {"terminated": t == 1, "truncated": False}
    return AgentTransition(episode, agent, "p", t, obs, action, obs, 1.5, **ends)


def test_several_agents_have_columns_of_their_own():
    recorder = TransitionRecorder()
    no_steps = {"rewards": np.zeros(2), "terminateds": None, "truncateds": None}
    for agents in (
        [transition(1, "a", 0, np.zeros(3)), transition(0, "b", 0, {"x": 1, "y": (2, 3)}, (4, 5))],
        [transition(0, "b", 2, {"x": 6, "y": (7, 8)}, (9, 9)), transition(0, "a", 1, np.ones(3))],
    ):
        recorder(RecordedStep(None, None, None, episodes=[0, 1], agents=agents, **no_steps))
    columns = recorder.columns()
    assert columns["a/episode"].tolist() == [0, 1]
    assert columns["a/obs"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert columns["a/terminated"].tolist() == [True, False]
    assert columns["b/t"].tolist() == [0, 2]
    assert columns["b/obs/y/1"].tolist() == [3, 8]
    assert columns["b/action/0"].tolist() == [4, 9]
    assert columns["b/reward"].tolist() == [1.5, 1.5]


def with_infos(t, infos):
    return replace(step(t, [0, 1]), infos=infos)


def test_infos_are_columns_with_gaps(tmp_path):
    recorder, picture = TransitionRecorder(), np.zeros((2, 2), np.uint8)
    recorder(with_infos(0, {0: {"lives": 3, "at": {"x": picture}, "odd": [1]}, 1: {"lives": 4}}))
    picture[:] = 9
    last = {"lives": 2, "is_success": True, "said": "over", "odd": [1, 2], "bag": [[1], [2, 3]]}
    recorder(with_infos(1, {0: {**last, "object": object(), "none": None}}))
    recorder(with_infos(2, None))
    recorder.save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as columns:
        assert {name for name in columns if name.startswith("info/")} == {
            *("info/lives", "info/at/x", "info/is_success", "info/said"),
        }
        np.testing.assert_array_equal(columns["info/lives"], [3, 2, np.nan, 4, np.nan, np.nan])
        np.testing.assert_array_equal(columns["info/is_success"], [np.nan, 1, *[np.nan] * 4])
        assert columns["info/said"].tolist() == ["", "over", "", "", "", ""]
        assert columns["info/at/x"][0].tolist() == [[0, 0], [0, 0]]


def test_infos_of_several_agents_are_their_own():
    recorder = TransitionRecorder()
    no_steps = {"rewards": np.zeros(1), "terminateds": None, "truncateds": None}
    agents = [replace(transition(0, "a", t, np.zeros(3)), info={"speed": t}) for t in (1, 2)]
    recorder(RecordedStep(None, None, None, episodes=[0], agents=agents, **no_steps))
    assert recorder.columns()["a/info/speed"].tolist() == [1, 2]


def test_rows_are_copies():
    recorder = TransitionRecorder()
    first = step(0, [0, None])
    recorder(first)
    first.obs[:] = -1
    assert recorder.columns()["obs"].tolist() == [[0, 0]]


def test_leaves_of_nested_spaces_are_columns():
    recorder = TransitionRecorder()
    recorder(step(0, [0, 1], nested=True))
    columns = recorder.columns()
    assert columns["obs/b/1"].tolist() == [[5, 5], [5, 6]]
    assert {"obs/a", "obs/b/0", "next_obs/a"} <= columns.keys()


def test_a_step_limit_counts_the_steps_of_wanted_episodes():
    limit = StepLimit(3)
    assert [limit(step(0, e)) for e in ([0, 1], [0, None], [0, 1])] == [False, True, True]


def test_a_video_without_its_extra_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(InputError, match=r"pip install \"rlrun\[video\]\""):
        VideoRecorder(tmp_path, None)

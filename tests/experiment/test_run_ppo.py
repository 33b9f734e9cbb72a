"""The whole of it with the real algorithm: resumed runs and rollouts equal those left alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlrun.algorithms.result import is_wall_clock
from rlrun.checkpoint.checkpoint import CheckpointError, read_checkpoint
from rlrun.data.results import addresses, lookup
from rlrun.experiment.report.jsonl import read_rows
from rlrun.experiment.rollout import RolloutRequest, rollout
from rlrun.experiment.run import resume_experiment, run_experiment

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 4}
env_runners: {num_envs_per_env_runner: 4, observation_filter: MeanStdFilter}
model: {hidden: [16]}
training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 2}
evaluation: {interval: 2, episodes: 5, num_envs: 3}
checkpoint: {every: 2, keep: null}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four iterations that nobody disturbed."""
    path = tmp_path_factory.mktemp("ppo")
    (path / "ppo.yaml").write_text(FILE)
    run_experiment(path / "ppo.yaml", run_dir=path / "whole", console="quiet")
    return path


def timeless(folder):
    """All numbers that do not depend on the machine's speed."""
    return [
        {key: lookup(row, key) for key in addresses(row) if not is_wall_clock(key)}
        for row in read_rows(Path(folder) / "metrics.jsonl")
    ]


def same_checkpoints(left, right):
    a, b = read_checkpoint(left), read_checkpoint(right)
    for name in a.weights:
        assert a.weights[name].tobytes() == b.weights[name].tobytes(), name
    state_a, state_b = (
        json.loads((left / "state.json").read_text()),
        json.loads((right / "state.json").read_text()),
    )
    state_a.pop("time_s"), state_b.pop("time_s")
    assert state_a == state_b
    assert (left / "state.safetensors").read_bytes() == (right / "state.safetensors").read_bytes()


def test_a_resumed_run_equals_one_left_alone(whole):
    file, folder = whole / "ppo.yaml", whole / "resumed"
    run_experiment(file, ["stop.training_iteration=2"], run_dir=folder, console="quiet")
    resume_experiment(folder, ["stop.training_iteration=4"], console="quiet")
    assert timeless(folder) == timeless(whole / "whole")
    same_checkpoints(folder / "checkpoints/000004", whole / "whole/checkpoints/000004")


def test_all_rows_have_the_same_keys_and_timers_that_add_up(whole):
    rows = list(read_rows(whole / "whole/metrics.jsonl"))
    assert len({tuple(addresses(row)) for row in rows}) == 1
    for row in rows:
        wall = row["env_steps_this_iter"] / row["env_steps_per_s"]
        assert sum(row["timers"].values()) == pytest.approx(wall, rel=0.01)
    assert rows[2]["timers"]["checkpoint_s"] > 0


def test_a_rollout_gives_the_numbers_that_training_logged(whole):
    for row in read_rows(whole / "whole/metrics.jsonl"):
        if row["evaluation"]["episodes"] is not None:
            name = f"{row['training_iteration']:06d}"
            played = rollout(whole / "whole/checkpoints" / name)
            assert played.statistics == row["evaluation"]


def test_a_seed_decides_and_another_one_differs(whole):
    run = whole / "whole"
    first, again, other = (
        rollout(run, RolloutRequest(episodes=4, seed=seed)).to_json()["played"]
        for seed in (7, 7, 8)
    )
    assert first == again != other
    assert len(first) == 4


def test_saved_transitions_add_up_to_the_episodes(whole, tmp_path):
    played = rollout(whole / "whole", RolloutRequest(episodes=3, save=tmp_path / "t.npz"))
    with np.load(tmp_path / "t.npz", allow_pickle=False) as columns:
        for number, episode in enumerate(played.episodes):
            rows = columns["episode"] == number
            assert columns["reward"][rows].sum() == episode.episode_return
            assert rows.sum() == episode.length
            ends = columns["terminated"][rows] | columns["truncated"][rows]
            assert ends.tolist() == [False] * (episode.length - 1) + [True]
            np.testing.assert_array_equal(columns["obs"][rows][1:], columns["next_obs"][rows][:-1])


def test_saved_transitions_of_several_agents_add_up_to_their_returns(tmp_path):
    (tmp_path / "two.yaml").write_text(
        FILE.replace("CartPole-v1", "MultiAgentCartPole").replace(
            "training_iteration: 4", "env_steps: 1"
        )
        + "multi_agent: {policies: [agent_0, agent_1]}\n"
    )
    run_experiment(tmp_path / "two.yaml", run_dir=tmp_path / "run", console="quiet")
    played = rollout(tmp_path / "run", RolloutRequest(episodes=3, save=tmp_path / "t.npz"))
    with np.load(tmp_path / "t.npz", allow_pickle=False) as columns:
        for number, episode in enumerate(played.episodes):
            for agent, _, agent_return in episode.agents:
                rows = columns[f"{agent}/episode"] == number
                assert columns[f"{agent}/reward"][rows].sum() == agent_return
                assert columns[f"{agent}/t"][rows].tolist() == list(range(rows.sum()))
                ended = columns[f"{agent}/terminated"][rows] | columns[f"{agent}/truncated"][rows]
                assert ended.tolist() == [False] * (rows.sum() - 1) + [True]
                obs, led_to = columns[f"{agent}/obs"][rows], columns[f"{agent}/next_obs"][rows]
                np.testing.assert_array_equal(obs[1:], led_to[:-1])


def test_a_step_limit_ends_the_play(whole):
    assert rollout(whole / "whole", RolloutRequest(episodes=5, steps=3)).episodes == ()


def test_a_model_that_misfits_is_refused(whole):
    with pytest.raises(CheckpointError, match="does not fit this env and model"):
        resume_experiment(
            whole / "whole", ["model.hidden=[8]", "stop.training_iteration=9"], console="quiet"
        )

"""PPO from file to folder: resumed runs and rollouts equal undisturbed ones."""

import json
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import assert_equal_runs, meta, rows

from rlrun.checkpoint.checkpoint import CheckpointError, read_checkpoint
from rlrun.config.loader import load_experiment
from rlrun.data.results import addresses
from rlrun.envs.errors import EnvError
from rlrun.experiment.rollout import load_policy, rollout
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
    """Folder with the file and a run of four iterations."""
    path = tmp_path_factory.mktemp("ppo")
    (path / "ppo.yaml").write_text(FILE)
    run_experiment(path / "ppo.yaml", run_dir=path / "whole", console="quiet")
    return path


def same_states(left, right):
    left_state, right_state = (
        json.loads((path / "state.json").read_text()) for path in (left, right)
    )
    left_state["progress"].pop("time_s"), right_state["progress"].pop("time_s")
    assert left_state == right_state
    assert (left / "state.safetensors").read_bytes() == (right / "state.safetensors").read_bytes()


def test_a_resumed_run_equals_an_undisturbed_one(whole):
    file, folder = whole / "ppo.yaml", whole / "resumed"
    run_experiment(file, ["stop.training_iteration=2"], run_dir=folder, console="quiet")
    resume_experiment(folder, ["stop.training_iteration=4"], console="quiet")
    assert_equal_runs(folder, whole / "whole")
    same_states(folder / "checkpoints/000004", whole / "whole/checkpoints/000004")


def test_an_override_holds_from_the_next_update_on_and_in_later_sessions(whole, tmp_path):
    run = shutil.copytree(whole / "whole", tmp_path / "run", symlinks=True)
    resume_experiment(run, ["training.lr=0", "stop.training_iteration=5"], console="quiet")
    resume_experiment(run, ["stop.training_iteration=6"], console="quiet")
    rates = [row["learners"]["default_policy"]["learner_stats"]["lr"] for row in rows(run)]
    assert rates == [3e-4] * 4 + [0.0] * 2
    assert load_experiment(run / "config.yaml").training.lr == 0.0
    before, after = (read_checkpoint(run / f"checkpoints/00000{i}").weights for i in (4, 6))
    assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())


def test_the_reason_of_a_failed_run_is_the_exception_of_its_environment(whole, tmp_path):
    change = ["env=counting_envs:FailsAtReset", "env_runners.observation_filter=NoFilter"]
    with pytest.raises(EnvError):
        run_experiment(whole / "ppo.yaml", change, run_dir=tmp_path / "run", console="quiet")
    place = "reset failed: env 'counting_envs:FailsAtReset', runner 0, sub-env 0"
    assert meta(tmp_path / "run")["sessions"][0]["reason"] == f"RuntimeError: no start; {place}"


def test_all_rows_have_the_same_keys_and_timers_that_add_up(whole):
    found = rows(whole / "whole")
    assert len({tuple(addresses(row)) for row in found}) == 1
    for row in found:
        wall = row["env_steps_this_iter"] / row["env_steps_per_s"]
        assert sum(row["timers"].values()) == pytest.approx(wall, rel=0.01)
    assert found[2]["timers"]["checkpoint_s"] > 0


def test_a_rollout_gives_the_numbers_that_training_logged(whole):
    for row in rows(whole / "whole"):
        if row["evaluation"]["episodes"] is not None:
            name = f"{row['training_iteration']:06d}"
            found = rollout(whole / "whole/checkpoints" / name)
            assert found.statistics == row["evaluation"]


def test_a_rollout_explores_if_the_evaluation_did_and_nothing_else_is_asked_for(whole):
    exploring = ["evaluation.explore=true", "stop.training_iteration=2"]
    run_experiment(whole / "ppo.yaml", exploring, run_dir=whole / "exploring", console="quiet")
    found = rollout(whole / "exploring")
    assert found.explore
    assert found.statistics == rows(whole / "exploring")[1]["evaluation"]
    certain = rollout(whole / "exploring", explore=False)
    assert certain.statistics == rows(whole / "whole")[1]["evaluation"] != found.statistics


def test_a_loaded_policy_plays_what_the_rollout_of_its_run_plays(whole):
    played = rollout(whole / "whole", episodes=3).episodes
    policy, env = load_policy(whole / "whole"), gymnasium.make("CartPole-v1")
    for episode in played:
        policy.reset()
        observation, length, over = env.reset(seed=episode.seed)[0], 0, False
        while not over:
            action = policy.compute_single_action(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            length, over = length + 1, terminated or truncated
        assert length == episode.length


def test_policies_are_loaded_in_threads_and_leave_the_global_generators_as_they_were(whole):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    interval, before = sys.getswitchinterval(), states()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as threads:
            loaded = list(threads.map(load_policy, [whole / "whole"] * 12))
    finally:
        sys.setswitchinterval(interval)
    assert states() == before
    assert len({policy.compute_single_action(np.ones(4, np.float32)) for policy in loaded}) == 1


class AgainstAnother(gymnasium.Wrapper):
    """CartPole-v1 with a policy of another run, as an opponent would be."""

    def __init__(self, other):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.other = load_policy(other)


def test_an_environment_may_load_a_policy(whole, tmp_path):
    env = {"use": f"{__name__}:AgainstAnother", "other": str(whole / "whole")}
    overrides = [f"env={json.dumps(env)}", "stop.training_iteration=1", "evaluation=null"]
    run_experiment(whole / "ppo.yaml", overrides, run_dir=tmp_path / "run", console="quiet")
    assert load_policy(tmp_path / "run").compute_single_action(np.ones(4, np.float32)) in (0, 1)


def test_equal_seeds_give_equal_rollouts(whole):
    run = whole / "whole"
    first, again, other = (
        rollout(run, episodes=4, seed=seed).to_json()["per_episode"] for seed in (7, 7, 8)
    )
    assert first == again != other
    assert len(first) == 4


def test_a_policy_of_a_run_with_a_limit_for_environments_is_loaded_in_any_thread(whole):
    words = ["fault_tolerance.env_timeout_s=5", "stop.training_iteration=1"]
    run_experiment(whole / "ppo.yaml", words, run_dir=whole / "limited", console="quiet")
    with ThreadPoolExecutor(1) as thread:
        policy = thread.submit(load_policy, whole / "limited").result()
    assert policy.num_envs == 1


def check_transitions(columns, prefix, episode, expected_return):
    """The rows of one episode follow each other up to its end."""
    rows = columns[f"{prefix}episode"] == episode
    names = ("obs", "next_obs", "reward", "terminated", "truncated")
    obs, next_obs, reward, *ends = (columns[f"{prefix}{name}"][rows] for name in names)
    assert reward.sum() == expected_return
    assert (ends[0] | ends[1]).tolist() == [False] * (rows.sum() - 1) + [True]
    np.testing.assert_array_equal(obs[1:], next_obs[:-1])


def test_saved_transitions_add_up_to_the_episodes(whole, tmp_path):
    found = rollout(whole / "whole", episodes=3, save=tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as columns:
        for number, episode in enumerate(found.episodes):
            assert (columns["episode"] == number).sum() == episode.length
            check_transitions(columns, "", number, episode.episode_return)


def test_saved_transitions_of_several_agents_add_up_to_their_returns(tmp_path):
    (tmp_path / "two.yaml").write_text(
        FILE.replace("CartPole-v1", "MultiAgentCartPole").replace(
            "training_iteration: 4", "env_steps: 1"
        )
        + "multi_agent: {policies: [agent_0, agent_1]}\n"
    )
    run_experiment(tmp_path / "two.yaml", run_dir=tmp_path / "run", console="quiet")
    found = rollout(tmp_path / "run", episodes=3, save=tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as columns:
        for number, episode in enumerate(found.episodes):
            for agent, _, agent_return in episode.agents:
                steps = columns[f"{agent}/t"][columns[f"{agent}/episode"] == number]
                assert steps.tolist() == list(range(len(steps)))
                check_transitions(columns, f"{agent}/", number, agent_return)


def test_a_step_limit_ends_the_rollout(whole):
    assert rollout(whole / "whole", episodes=5, steps=3).episodes == ()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("model.hidden=[8]", "does not fit this env and model: "),
        ("env_runners.num_envs_per_env_runner=2", "experiment: num_envs_per_env_runner must be 4"),
    ],
)
def test_a_checkpoint_of_another_experiment_is_refused(other, says, whole):
    with pytest.raises(CheckpointError, match=says):
        resume_experiment(whole / "whole", [other, "stop.training_iteration=9"], console="quiet")


def test_a_filter_cannot_be_switched_off_under_a_policy_that_learned_with_it(whole):
    with pytest.raises(
        CheckpointError, match=r"with env_runners\.observation_filter: MeanStdFilter"
    ):
        resume_experiment(
            whole / "whole",
            ["env_runners.observation_filter=NoFilter", "stop.training_iteration=9"],
            console="quiet",
        )


def test_rewards_are_normalised_from_where_it_is_switched_on(whole, tmp_path):
    shutil.copytree(whole / "whole", tmp_path / "run", symlinks=True)
    overrides = ["connectors.normalize_rewards=true", "stop.training_iteration=6"]
    resume_experiment(tmp_path / "run", overrides, console="quiet")
    assert [row["training_iteration"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_filter_cannot_be_switched_on_over_a_policy_that_learned_without(tmp_path):
    (tmp_path / "ppo.yaml").write_text(FILE.replace("MeanStdFilter", "NoFilter"))
    run_experiment(
        tmp_path / "ppo.yaml",
        ["stop.training_iteration=1"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    with pytest.raises(CheckpointError, match=r"with env_runners\.observation_filter: NoFilter"):
        resume_experiment(
            tmp_path / "run",
            ["env_runners.observation_filter=MeanStdFilter", "stop.training_iteration=2"],
            console="quiet",
        )

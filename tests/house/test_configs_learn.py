"""`make test-learning`: files in configs/ reach the return they promise, within their budget."""

import math
import statistics

import pytest
from source_tree import ROOT

from rlrun import rollout, run_experiment

pytestmark = pytest.mark.learning

# A few minutes together on two cores, so slow ones have one seed; the files' comments name more.
SEEDS = {
    "ppo_cartpole": (1, 2, 3),
    "ppo_acrobot": (1,),
    "ppo_pendulum": (1,),
    "a2c_cartpole": (1,),
    "pg_cartpole": (1,),
    "appo_cartpole": (1,),
    "ppo_repeat_after_me_lstm": (1, 2, 3),
    "ppo_repeat_after_me_attention": (1, 2, 3),
    "ppo_stateless_cartpole_lstm": (1,),
}
# The same experiments fail without a memory; the one with attention becomes the first one then.
NEED_MEMORY = {
    "ppo_repeat_after_me_lstm": (["model.use_lstm=false", "stop.env_steps=100_000"], 20),
    "ppo_stateless_cartpole_lstm": (["model.use_lstm=false", "stop.env_steps=200_000"], 150),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in SEEDS.items() for seed in seeds]
)
def test_config_reaches_its_return(name, seed, tmp_path):
    outcome = run_experiment(
        ROOT / "configs" / f"{name}.yaml",
        [f"seed={seed}"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    assert outcome.end == "finished"
    assert outcome.reason.startswith("episode_return_mean"), outcome.reason
    assert outcome.result is not None
    # Without exploration, the trained policy is about as good as in training.
    trained = outcome.result["episode_return_mean"]
    # Of 20 episodes the mean would vary by more than the tenth: Acrobot's have a deviation of 30.
    rolled_out = rollout(outcome.folder, episodes=100)
    without_exploration = rolled_out.statistics["episode_return_mean"]
    assert without_exploration >= trained - 0.1 * abs(trained)


def test_cartpole_is_learned_from_batches_sampled_ahead(tmp_path):
    """By most seeds within the budget that the plain file needs; single ones vary."""
    needed = []
    for seed in range(1, 6):
        outcome = run_experiment(
            ROOT / "configs/ppo_cartpole.yaml",
            ["env_runners.sample_async=true", f"seed={seed}"],
            run_dir=tmp_path / f"run{seed}",
            console="quiet",
        )
        reached = outcome.reason.startswith("episode_return_mean")
        needed.append(outcome.result["env_steps"] if reached else math.inf)
    assert statistics.median(needed) <= 100_000, needed


@pytest.mark.parametrize("name", ["ppo-cartpole", "simpleq-cartpole", "appo-frozenlake"])
def test_an_experiment_of_rllib_reaches_the_return_of_its_own_stop(name, tmp_path):
    outcome = run_experiment(
        ROOT / "tests/config/rllib_examples.yaml",
        [f"name={name}", "seed=1", "env_runners.num_env_runners=0"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    assert outcome.end == "finished"
    assert outcome.reason.startswith("episode_return_mean"), outcome.reason


@pytest.mark.parametrize("name", NEED_MEMORY)
def test_without_memory_it_fails(name, tmp_path):
    overrides, most = NEED_MEMORY[name]
    outcome = run_experiment(
        ROOT / "configs" / f"{name}.yaml",
        [*overrides, "stop.episode_return_mean=null"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    assert outcome.result is not None
    assert outcome.result["episode_return_mean"] < most

"""`make test-learning`: files in configs/ reach the return they promise, within their budget."""

from pathlib import Path

import pytest
from source_tree import ROOT

from rlrun import Algorithm, load_experiment, rollout, run_experiment
from rlrun.config.registry import algorithm_class

pytestmark = pytest.mark.learning

# A few minutes together on two cores; the longer ones are measured when they change.
SEEDS = {
    "ppo_cartpole": (1, 2, 3),
    "ppo_acrobot": (1,),
    "ppo_pendulum": (1,),
    "a2c_cartpole": (1,),
    "pg_cartpole": (1,),
    "appo_cartpole": (1,),
    "ppo_repeat_after_me_lstm": (1, 2, 3),
    "ppo_repeat_after_me_attention": (1, 2, 3),
    "ppo_stateless_cartpole_lstm": (1, 2, 3),
}
# The same experiment without a memory does not get there.
NEED_MEMORY = {
    "ppo_repeat_after_me_lstm": (["model.use_lstm=false", "stop.env_steps=50_000"], 20),
    "ppo_stateless_cartpole_lstm": (["model.use_lstm=false", "stop.env_steps=200_000"], 150),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in SEEDS.items() for seed in seeds]
)
def test_config_reaches_its_return(name: str, seed: int, tmp_path: Path) -> None:
    outcome = run_experiment(
        ROOT / "configs" / f"{name}.yaml",
        [f"seed={seed}"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    assert outcome.end == "finished"
    assert outcome.reason.startswith("episode_return_mean"), outcome.reason
    assert outcome.result is not None
    # What is played afterwards, without exploration, is about as good as what was trained.
    trained = outcome.result["episode_return_mean"]
    played = rollout(outcome.folder).statistics["episode_return_mean"]
    assert played >= trained - 0.1 * abs(trained)


@pytest.mark.parametrize("name", NEED_MEMORY)
def test_without_memory_it_fails(name: str, tmp_path: Path) -> None:
    overrides, most = NEED_MEMORY[name]
    outcome = run_experiment(
        ROOT / "configs" / f"{name}.yaml",
        [*overrides, "stop.episode_return_mean=null"],
        run_dir=tmp_path / "run",
        console="quiet",
    )
    assert outcome.result is not None
    assert outcome.result["episode_return_mean"] < most


def test_a_time_limit_is_no_death() -> None:
    """Trained in episodes of at most 50 steps, the policy holds the pole for hundreds.

    Not with every seed: within 50 steps no cart drifts off the track, so that nothing says how bad
    that would be.
    """
    returns = []
    for seed in (1, 2, 3):
        trained, longer = _cartpole(50, seed), _cartpole(500, seed)
        for _ in range(96):
            trained.train()
        longer.set_weights(trained.get_weights())
        returns.append(longer.evaluate()["episode_return_mean"])
        trained.stop()
        longer.stop()
    assert sorted(returns)[1] >= 200, returns


def _cartpole(max_episode_steps: int, seed: int) -> Algorithm:
    config = load_experiment(
        ROOT / "configs" / "ppo_cartpole.yaml",
        [
            f"env={{use: CartPole-v1, max_episode_steps: {max_episode_steps}}}",
            "env_runners.num_env_runners=0",
            "training.lr=[[0, 2e-3], [100_000, 1e-5]]",
            "training.num_epochs=10",
            f"seed={seed}",
        ],
    )
    return algorithm_class(config.algorithm)(config)

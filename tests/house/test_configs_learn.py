"""`make test-learning`: files in configs/ reach the return they promise, within their budget."""

from pathlib import Path

import pytest
from source_tree import ROOT

from rlrun import rollout, run_experiment

pytestmark = pytest.mark.learning

# A few minutes together on two cores; the longer ones are measured when they change.
SEEDS = {
    "ppo_cartpole": (1, 2, 3),
    "ppo_acrobot": (1,),
    "ppo_pendulum": (1,),
    "a2c_cartpole": (1,),
    "pg_cartpole": (1,),
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

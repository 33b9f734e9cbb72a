"""PPO on environments of EnvPool: the same seed gives the same metrics, and a run goes on."""

import pytest
from tiny import train

from rlrun.algorithms.ppo import PPOConfig

pytest.importorskip("envpool", reason="the extra envpool is not installed")


def configured(env="CartPole-v1", runners=0):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=4,
            num_cpus_per_env_runner=0.1,
            gym_env_vectorize_mode="envpool",
        )
        .training(train_batch_size=64, minibatch_size=16, num_epochs=2)
        .evaluation(interval=2, episodes=3, num_envs=2)
        .debugging(seed=5)
    )


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.faults)])
def test_the_same_seed_gives_the_same_metrics(built, env, runners):
    first, again = (train(built(configured(env, runners)), 4) for _ in range(2))
    assert first == again
    assert [result["env_steps"] for result in first] == [64, 128, 192, 256]
    assert first[1]["evaluation/episode_return_mean"] is not None


def test_resumed_runs_begin_fresh_episodes_and_are_equal_among_themselves(built, tmp_path, caplog):
    algorithm = built(configured())
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    straight = train(algorithm, 2)

    def resumed():
        again = built(configured())
        again.restore(tmp_path / "checkpoint")
        return train(again, 2)

    first = resumed()
    assert "all running episodes start afresh" in caplog.text
    assert first == resumed()
    assert [result["env_steps"] for result in first] == [128, 192]
    assert first != straight

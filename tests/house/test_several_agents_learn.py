"""`make test-learning`: several agents reach the returns that their files in configs/ promise."""

import pytest
from source_tree import ROOT

from rlrun import DQNConfig, PPOConfig, make_multi_agent, run_experiment
from rlrun.envs.examples import RepeatAfterMe

pytestmark = pytest.mark.learning

TwoRepeatAfterMe = make_multi_agent(RepeatAfterMe)


def _run(name, tmp_path, *overrides):
    """The reason why the run of a config ended, and its last result."""
    outcome = run_experiment(
        ROOT / "configs" / f"{name}.yaml", overrides, run_dir=tmp_path / "run", console="quiet"
    )
    assert outcome.end == "finished"
    assert outcome.result is not None
    return outcome.reason, outcome.result


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policies", ["agent_0, agent_1", "shared"])
def test_each_agent_holds_its_pole(policies, seed, tmp_path):
    overrides = [f"multi_agent.policies=[{policies}]", f"seed={seed}"]
    reason, result = _run("ppo_multi_agent_cartpole", tmp_path, *overrides)
    assert reason.startswith("episode_return_mean"), reason
    for kind in ("policy_return_mean", "agent_return_mean"):
        assert min(result["env_runners"][kind].values()) >= 400, result["env_runners"]


def test_rock_paper_scissors_against_heuristics(tmp_path):
    reason, result = _run("ppo_rock_paper_scissors", tmp_path)
    assert result["env_runners"]["policy_return_mean"]["learner"] >= 6, reason


def test_self_play_leaves_five_copies(tmp_path):
    reason, result = _run("ppo_self_play", tmp_path)
    assert reason.startswith("league/newest"), reason
    assert result["league"]["newest"] >= 5


@pytest.mark.parametrize(("use_lstm", "least", "most"), [(True, 80, 100), (False, -10, 20)])
def test_two_agents_each_with_a_memory(built, use_lstm, least, most):
    """Without one, an agent gets 0 on average; 100 is perfect."""
    algorithm = built(
        PPOConfig()
        .environment("test_several_agents_learn:TwoRepeatAfterMe")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .multi_agent(policies=["agent_0", "agent_1"])
        .model(hidden=[32], use_lstm=use_lstm, lstm_cell_size=32, max_seq_len=20)
        .training(train_batch_size=2048, lr=2e-3, gamma=0.5, lambda_=0.9)
        .training(num_epochs=6, minibatch_size=256)
        .debugging(seed=1)
    )
    for _ in range(10):
        result = algorithm.train()
    for reached in result["env_runners"]["policy_return_mean"].values():
        assert least <= reached <= most


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_two_agents_replay(built, mode):
    """A random policy holds the pole for about twenty steps."""
    algorithm = built(
        DQNConfig()
        .environment("rlrun.envs.multi_agent_examples:MultiAgentCartPole")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .multi_agent(policies=["agent_0", "agent_1"])
        .model(hidden=[64, 64], activation="relu")
        .training(train_batch_size=2048, lr=1e-3, minibatch_size=64, training_intensity=16)
        .training(target_network_update_freq=500, n_step=3)
        .exploration(epsilon=[[0, 1.0], [10_000, 0.02]])
        .replay(mode=mode)
        .debugging(seed=2)
    )
    for _ in range(8):
        result = algorithm.train()
    assert min(result["env_runners"]["policy_return_mean"].values()) >= 80

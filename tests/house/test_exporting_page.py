"""docs/exporting.md: its scripts play checkpoints and files, and get what `rollout` gets."""

import pytest
from pages import blocks, execute, page

from rlrun import export, rollout, run_experiment

PAGE = page("exporting.md")
PLAYS_ONNX, PLAYS_TORCHSCRIPT, PLAYS_CHECKPOINT = blocks(PAGE, "python")
CARTPOLE = """
algorithm: PPO
env: CartPole-v1
stop: {training_iteration: 1}
model: {hidden: [8, 8]}
env_runners: {observation_filter: MeanStdFilter}
training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 1}
"""
PENDULUM = """
algorithm: PPO
env: Pendulum-v1
stop: {training_iteration: 1}
model: {hidden: [8], use_lstm: true, lstm_cell_size: 4, lstm_use_prev_reward: true}
training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 1}
"""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train a file as the run of the page; its folder, and one episode's return and seed."""
    monkeypatch.chdir(tmp_path)

    def train(text):
        (tmp_path / "ppo.yaml").write_text(text)
        run_experiment("ppo.yaml", run_dir="runs/ppo_cartpole", console="quiet")
        (episode,) = rollout("runs/ppo_cartpole", episodes=1).episodes
        return episode

    return train


def played(code, episode):
    """The return of a script that plays the same episode."""
    names = {}
    execute(code.replace("seed=0", f"seed={episode.seed}"), names, "docs/exporting.md")
    return names["total"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_checkpoint_plays_in_numpy_alone_and_as_torchscript(trained):
    episode = trained(CARTPOLE)
    assert "torch" not in PLAYS_CHECKPOINT
    assert "rlrun" not in PLAYS_CHECKPOINT.replace("runs/", "")
    assert played(PLAYS_CHECKPOINT, episode) == episode.episode_return
    export("runs/ppo_cartpole", torchscript="policy.pt")
    assert played(PLAYS_TORCHSCRIPT, episode) == episode.episode_return


@pytest.mark.learning
def test_a_file_with_memory_plays_with_onnx_runtime(trained):
    pytest.importorskip("onnxruntime")
    episode = trained(PENDULUM)
    export("runs/ppo_cartpole", onnx="policy.onnx")
    assert played(PLAYS_ONNX, episode) == pytest.approx(episode.episode_return, rel=1e-5)

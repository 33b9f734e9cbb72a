"""An experiment file of the counting algorithm in an empty folder."""

import pytest

COUNTING = """
algorithm: "counting_algorithm:CountingAlgorithm"
env: CartPole-v1
seed: 3
stop: {training_iteration: 6}
training: {train_batch_size: 100}
"""


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """Path of the file, in the working directory; its text ends with a line break."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fake.yaml"
    path.write_text(COUNTING)
    return path

"""Shared by the tests of the config room."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]

MINIMAL = "algorithm: fake_algorithm:Fake\nenv: CartPole-v1\nstop: {env_steps: 100_000}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into a fresh working directory; by default behind a minimal experiment."""
    monkeypatch.chdir(tmp_path)

    def write_file(text="", name="exp.yaml", *, minimal=True):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((MINIMAL if minimal else "") + text, encoding="utf-8")
        return file

    return write_file

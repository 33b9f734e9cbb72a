"""docs/managing-runs.md: its commands work on folders like those that it names."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from pages import blocks, page

from rlrun.cli.main import main

COMMANDS = [
    shlex.split(line, comments=True)
    for line in blocks(page("managing-runs.md"), "sh")[0].splitlines()
    if not line.startswith("rlrun rerun")  # which trains
]


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    """The runs that the page names."""
    monkeypatch.chdir(tmp_path)
    for name in ("my/a", "my/b", "my/sweep/trials/0001"):
        folder = Path("runs", name)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("algorithm: PPO\nenv: CartPole-v1\n")
        (folder / "meta.json").write_text(json.dumps({"outcome": "finished"}))
    Path("runs/my/sweep/sweep.yaml").touch()
    Path("runs/my/latest").symlink_to("a")


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_its_commands_work(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err

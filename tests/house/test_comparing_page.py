"""docs/comparing.md: its commands and its code run."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from pages import blocks, execute, page

from rlrun.cli.main import main

SHELL = "".join(blocks(page("comparing.md"), "sh"))
COMMANDS = [
    shlex.split(line, comments=True)
    for line in SHELL.splitlines()
    if " compare " in line or " report " in line
]
ROW = {
    "training_iteration": 1,
    "episode_return_mean": 9.0,
    "episode_len_mean": 9,
    "evaluation": {"episode_return_mean": 1},
}


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    """The runs that the page names."""
    monkeypatch.chdir(tmp_path)
    for folder in map(Path, ("runs/ppo_cartpole-v1/latest", "runs/other/latest")):
        folder.mkdir(parents=True)
        lr = len(str(folder))
        settings = f"algorithm: PPO\nenv: CartPole-v1\nseed: 1\ntraining: {{lr: {lr}}}\n"
        (folder / "config.yaml").write_text(settings)
        rows = [{**ROW, "env_steps": steps, "time_s": 1.0} for steps in (10_000, 30_000)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_its_commands_work(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err


def test_its_code_works(capsys):
    (code,) = blocks(page("comparing.md"), "python")
    execute(code, {}, "docs/comparing.md")
    assert capsys.readouterr().out == "{} 9.0 None None\n"

"""docs/callbacks.md: its example runs, and its tables have every method of `Callbacks`."""

import re
import sys
import types

from pages import blocks, execute, page

from rlrun import Callbacks, load_experiment
from rlrun.config.registry import algorithm_class

PAGE = page("callbacks.md")


def test_its_tables_have_every_method():
    named = re.findall(r"^\| `(on_\w+)\(", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(name for name in vars(Callbacks) if name.startswith("on_"))


def test_its_example_runs_and_is_reported(built, tmp_path, monkeypatch):
    ((yaml,), (example,)) = blocks(PAGE, "yaml"), blocks(PAGE, "python")
    for name in ("my", "my.code"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    execute(example, vars(sys.modules["my.code"]), "docs/callbacks.md")
    file = tmp_path / "page.yaml"
    sizes = "training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 1}"
    file.write_text(f"algorithm: PPO\nenv: CartPole-v1\nseed: 1\n{sizes}\n{yaml}")
    experiment = load_experiment(file)
    algorithm = built(lambda: algorithm_class(experiment.algorithm)(experiment))
    result = algorithm.train()
    metrics = result["custom_metrics"]
    assert metrics["leaning_max"] > metrics["leaning_min"] >= 0
    assert result["hours"] < 1
    (env, *_) = algorithm.env_runner_group.foreach_env(lambda env: env.unwrapped.length)[0]
    assert env == 0.6

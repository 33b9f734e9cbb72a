"""A dumped experiment is a file that loads to an equal experiment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.dump import dump_yaml, show_yaml
from rlrun.config.loader import load, load_experiment
from rlrun.config.validate import validate
from rlrun.config.yaml_tree import parse_yaml

EXPERIMENTS = [
    "",
    "training: {lr: [[0, 1e-3], [1e6, 0]], clip: 1e-5, gamma: 1}",
    "model: {hidden: [], conv: [[32, 8, 4], [64, 4, 2]], share_layers: true}",
    "model: {use: 'torch.nn:Linear', out_features: 2, hidden: [3]}",
    "callbacks: ['fake_algorithm:Callback', {use: 'fake_algorithm:Callback', every: 2}]",
    "report: {sinks: [jsonl]}\nseed: 7\nname: n.1",
    "stop: {env_steps: 1e9, evaluation/x: -1.5e-7}\nevaluation: {interval: 2, seed: 0}",
    "checkpoint: {keep: null, metric: env_steps, mode: min}",
    "env_runners: {custom_resources_per_env_runner: {a b: 0.5}, preprocessor_pref: null}",
]


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_loads_to_an_equal_experiment(write, text):
    stop = "" if "stop:" in text else "stop: {time_s: 9}\n"
    head = "algorithm: fake_algorithm:Fake\nenv: {use: CartPole-v1, max_episode_steps: 50}\n"
    experiment = load_experiment(write(head + stop + text, minimal=False))
    dumped = dump_yaml(experiment)
    again = load_experiment(write(dumped, "again.yaml", minimal=False))
    assert again == experiment
    assert dump_yaml(again) == dumped


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["on", "012", "1:30", "1e-4", "null", "true", "2026-01-01", "a: b", "# c"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(min_size=1, max_size=20), _VALUES, max_size=4))
def test_any_arguments_survive(kwargs):
    env = {"use": "x", "kwargs": kwargs}
    experiment, findings = validate({"algorithm": "fake_algorithm:Fake", "env": env})
    assert experiment is not None, findings
    again, findings = validate(parse_yaml(dump_yaml(experiment), "f").plain())
    assert again == experiment, findings


def test_show_says_where_each_value_comes_from(write):
    write("seed: 4", "b.yaml")
    loaded = load(write("base: b.yaml\ntraining: {clip: 1}", minimal=False), ["training.lr=1"])
    shown = show_yaml(loaded.experiment, loaded.origin)
    notes = {
        line.split(":")[0]: line.rpartition("# ")[2] for line in shown.splitlines() if "#" in line
    }
    assert notes["seed"] == "b.yaml:4:1"
    assert notes["  clip"] == "exp.yaml:2:12"
    assert notes["  lr"] == "<command line>"
    assert notes["  num_epochs"] == "default"
    assert notes["name"] == "exp.yaml"
    assert validate(parse_yaml(shown, "f").plain())[0] == loaded.experiment

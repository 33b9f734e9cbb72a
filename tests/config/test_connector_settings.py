"""Connectors of the user in a config: one or several, found, given the right arguments."""

from pathlib import Path

import pytest

from rlrun import Connector, PPOConfig
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.schema import UseSpec

KEY = "env_runners.env_to_module_connector"


class Scale(Connector):
    def __init__(self, factor, env=None, seed=0):
        self.factor = factor

    def __call__(self, observations, history):
        return observations * self.factor


def plain(env):
    return Scale(1.0)


def acting(env, module):
    return Scale(1.0)


def errors(tmp_path: Path, text: str) -> str:
    file = tmp_path / "x.yaml"
    file.write_text(f"algorithm: PPO\nenv: CartPole-v1\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_experiment(file)
    return caught.value.render()


def test_one_needs_no_list(tmp_path: Path) -> None:
    one = {"use": f"{__name__}:Scale", "factor": 2.0}
    spec = UseSpec(use=f"{__name__}:Scale", kwargs={"factor": 2.0})
    for given in (one, [one]):
        config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=given)
        assert config.experiment().env_runners.env_to_module_connector == (spec,)
    several = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(env_to_module_connector=[plain, one], module_to_env_connector=acting)
        .experiment()
        .env_runners
    )
    assert several.env_to_module_connector == (UseSpec(use=f"{__name__}:plain"), spec)
    assert several.module_to_env_connector == (UseSpec(use=f"{__name__}:acting"),)


def test_a_written_experiment_is_read_again(tmp_path: Path) -> None:
    from rlrun.config.dump import dump_yaml

    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=[plain])
    file = tmp_path / "again.yaml"
    file.write_text(dump_yaml(config.experiment()), encoding="utf-8")
    assert load_experiment(file).env_runners == config.experiment().env_runners


@pytest.mark.parametrize(
    ("value", "line", "message"),
    [
        (f"{__name__}:Scal", 4, "did you mean Scale?"),
        (f"{{use: '{__name__}:Scale', facto: 2}}", 4, "did you mean factor?"),
        (f"{{use: '{__name__}:Scale'}}", 4, "needs the argument 'factor'"),
        (f"['{__name__}:plain', '{__name__}:Scale']", 4, "needs the argument 'factor'"),
        (f"'{__name__}:acting'", 4, "needs the argument 'module'"),
        ("3", 4, "expected a list"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(
    tmp_path: Path, value: str, line: int, message: str
) -> None:
    said = errors(tmp_path, f"env_runners:\n  env_to_module_connector: {value}\n")
    assert message in said
    assert f"x.yaml:{line}:" in said
    assert KEY in said


def test_default_connectors_that_are_off_cannot_be_asked_for(tmp_path: Path) -> None:
    said = errors(
        tmp_path,
        "env_runners:\n  observation_filter: MeanStdFilter\n"
        "  add_default_connectors_to_env_to_module_pipeline: false\n",
    )
    assert "x.yaml:4:" in said
    assert "add_default_connectors_to_env_to_module_pipeline: true" in said
    said = errors(
        tmp_path,
        "connectors: {clip_actions: true}\n"
        "env_runners: {add_default_connectors_to_module_to_env_pipeline: false}\n",
    )
    assert "add_default_connectors_to_module_to_env_pipeline: true" in said


def test_a_function_without_a_name_cannot_travel() -> None:
    with pytest.raises(ConfigError, match="put it at the top of a module"):
        PPOConfig().env_runners(env_to_module_connector=lambda env: Scale(1.0))

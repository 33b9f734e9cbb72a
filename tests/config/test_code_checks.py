"""The code that a config names: found, callable, and given the right arguments."""

import sys
from pathlib import Path

import pytest
from loading import errors

from rlrun import PPO, Connector, Policy, PPOConfig
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import load_experiment
from rlrun.config.registry import ImportPathError, import_object, import_path_of, nearest
from rlrun.config.schema import UseSpec
from rlrun.envs.multi_agent_examples import AlwaysSame


class Scale(Connector):
    def __init__(self, factor, env=None, seed=0):
        self.factor = factor

    def __call__(self, observations, history):
        return observations * self.factor


class Thinking(Policy):
    """A policy that does not act."""


class Short(AlwaysSame):
    def __init__(self, observation_space):
        pass


def relabel(batch):
    return batch


def plain(env):
    return Scale(1.0)


def acting(env, module):
    return Scale(1.0)


@pytest.mark.parametrize(
    "text",
    [
        "callbacks: [{use: 'fake_algorithm:Callback', every: 2}]",
        "report: {sinks: [console, 'fake_algorithm:Callback']}",
        "env_runners: {sample_collector: SimpleListCollector}",
        "env_runners: {sample_collector: 'fake_algorithm:Callback'}",
        "model: {use: 'torch.nn:Linear', out_features: 3}",
    ],
)
def test_right_code(write, text):
    load_experiment(write(text))


CONNECTOR = "env_runners.env_to_module_connector"


LIBRARY = "it belongs to Python's standard library"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env=os:system", LIBRARY),
        ("env=gymnasium.logger:warnings.warn", LIBRARY),
        ("env=rlrun.checkpoint.files:remove_directory", "it is part of rlrun, but no environment"),
        ("callbacks=['rlrun.config.loader:load']", "it is part of rlrun, but no callback"),
        (f"{CONNECTOR}=['builtins:exec']", LIBRARY),
        ("model={use: 'rlrun.actors.ray_runtime:stop_ray'}", "it is part of rlrun, but no network"),
        ("multi_agent={policies: [a], agents: 'subprocess:call'}", LIBRARY),
        ("training.loss=builtins:print", LIBRARY),
    ],
)
def test_code_of_the_library_or_of_rlrun_needs_the_right_type(write, override, message):
    found = errors(write(), [override])
    assert [line for line in found if "cannot be used here" in line and message in line]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("callbacks", "[{use: 'fake_algorithm:Callback', evry: 2}]", "did you mean every?"),
        ("callbacks", "['fake_algorithm:Calback']", "did you mean Callback?"),
        ("report.sinks", "[tensorbord]", "did you mean tensorboard?"),
        ("env_runners.env_runner_cls", "fake_algorithm:No", "fake_algorithm has no 'No'"),
        ("env_runners.sample_collector", "SimpleListColector", "did you mean SimpleListCollector?"),
        ("model", "{use: 'torch.nn:Linear', out_features: 3, bia: 1}", "did you mean bias?"),
        ("policy", f"{__name__}:Scale", f"{__name__}:Scale is not a subclass of rlrun.Policy"),
        ("policy", f"{__name__}:plain", f"{__name__}:plain is not a subclass of rlrun.Policy"),
        ("policy", f"{__name__}:Thinking", "Thinking defines no compute_actions()"),
        ("policy", f"{__name__}:Short", "is called with (observation_space, action_space, config)"),
        ("policy", "rlrun.policies.torch_policy:TorchPolicy", "derive it from rlrun.Learning"),
        (CONNECTOR, f"{__name__}:Scal", "did you mean Scale?"),
        (CONNECTOR, f"{{use: '{__name__}:Scale', factor: 1, facto: 2}}", "did you mean factor?"),
        (CONNECTOR, f"{{use: '{__name__}:Scale'}}", "needs the argument 'factor'"),
        (CONNECTOR, f"['{__name__}:plain', '{__name__}:Scale']", "needs the argument 'factor'"),
        (CONNECTOR, f"{__name__}:acting", "needs the argument 'module'"),
        (CONNECTOR, "3", "expected a list"),
        (
            "training.learner_connectors",
            f"['{__name__}:relabel']",
            "relabel needs the argument 'batch'; it makes the connector: name a class whose",
        ),
    ],
)
def test_wrong_code_is_an_error_with_its_place(write, key, value, message):
    section, dot, field = key.partition(".")
    lines = errors(write(f"{section}:\n  {field}: {value}" if dot else f"{section}: {value}"))
    assert lines[0].startswith(f"exp.yaml:{5 if dot else 4}:")
    assert key in lines[0]
    assert message in lines[0]


def test_what_is_no_policy_is_none_of_several_agents_either(write):
    found = errors(write(), [f"multi_agent={{policies: {{a: {{use: '{__name__}:Scale'}}}}}}"])
    assert f"multi_agent.policies.a: {__name__}:Scale is not a subclass of rlrun.Policy" in str(
        found
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_thing", "broken needs the module 'no_such_thing', which is missing"),
        ("\n1 / 0", "importing broken failed at {}:2: ZeroDivisionError: division by zero"),
        ("def f(:", "importing broken failed: SyntaxError: "),
        ("raise SystemExit(0)", "importing broken failed at {}:1: SystemExit: 0"),
    ],
)
def test_code_that_cannot_be_imported(tmp_path, monkeypatch, source, message):
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportPathError) as caught:
        import_object("broken:f")
    assert str(caught.value).startswith(message.format(tmp_path / "broken.py"))


def test_the_working_directory_is_importable(tmp_path, monkeypatch):
    (tmp_path / "lying_beside.py").write_text("value = 7")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    assert import_object("lying_beside:value") == 7


def test_files_of_the_working_directory_that_hide_an_installed_package_are_named(
    tmp_path, monkeypatch
):
    (tmp_path / "ray.py").touch()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportPathError, match=r"\./ray\.py hides the installed ray; rename it"):
        import_object("rlrun.algorithms.ppo:PPO")
    assert str(tmp_path) not in sys.path


def test_import_paths_go_both_ways():
    assert import_path_of(Path) is None or import_object(str(import_path_of(Path))) is Path
    assert import_path_of(nearest) == "rlrun.config.registry:nearest"
    assert import_path_of(lambda: 0) is None
    with pytest.raises(ImportPathError, match="expected"):
        import_object("just_a_word")


def test_a_single_connector_needs_no_list():
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


def test_connectors_that_are_written_are_read_again(write):
    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=[plain])
    file = write(dump_yaml(config.experiment()), minimal=False)
    assert load_experiment(file).env_runners == config.experiment().env_runners


class WrongDefault(PPO):
    class Training(PPO.Training):
        coeff: float = "high"  # type: ignore[assignment]
        """A setting whose default is not of its type."""


def test_a_default_of_a_wrong_type_is_named(write):
    words = [f"algorithm={__name__}:WrongDefault"]
    assert "training.coeff: expected a number, got the text 'high'" in str(errors(write(), words))
    assert load_experiment(write(), [*words, "training.coeff=1"]).training.coeff == 1

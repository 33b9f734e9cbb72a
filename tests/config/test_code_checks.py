"""The code that a config names: found, callable, and given the right arguments."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.config import registry
from rlrun.config.code_checks import check_code, check_env
from rlrun.config.registry import ImportPathError, import_object, import_path_of, nearest
from rlrun.config.schema import EnvSpec, ExperimentConfig, ModelConfig, TrainingConfig, UseSpec


def problems(use: str, **kwargs: Any) -> list[tuple[str, str]]:
    found = check_env(EnvSpec(use=use, kwargs=kwargs))
    return [(".".join(map(str, finding.path)), finding.message) for finding in found]


@pytest.fixture
def registered() -> Iterator[None]:
    registry.ENVS["Labyrinth"] = import_object("fake_algorithm:Maze")
    yield
    del registry.ENVS["Labyrinth"]


@pytest.mark.parametrize(
    ("use", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 50}),
        ("Pendulum-v1", {"g": 9.8}),
        ("FrozenLake-v1", {"is_slippery": False}),
        ("gymnasium.envs.classic_control:CartPole-v1", {}),
        ("fake_algorithm:Maze", {"size": 3}),
        ("fake_algorithm:Maze", {"size": 3, "walls": 1.0}),
        ("fake_algorithm:classical", {"anything": 3}),
        ("StatelessCartPole", {"max_episode_steps": 50}),
        ("rlrun.envs.examples:StatelessCartPole", {}),
        ("MultiAgentCartPole", {"num_agents": 3}),
    ],
)
def test_right_environments(use: str, kwargs: dict[str, Any]) -> None:
    assert problems(use, **kwargs) == []


@pytest.mark.parametrize(
    ("use", "kwargs", "key", "message"),
    [
        ("CartPol-v1", {}, "env.use", "did you mean CartPole-v1?"),
        ("cartpole-v1", {}, "env.use", "did you mean CartPole-v1?"),
        ("CartPole-v9", {}, "env.use", "did you mean CartPole-v"),
        ("Labyrint", {}, "env.use", "did you mean Labyrinth?"),
        ("statelesscartpole", {}, "env.use", "did you mean StatelessCartPole?"),
        ("RockPaperScisors", {}, "env.use", "did you mean RockPaperScissors?"),
        ("TakeTurns", {"gaol": 3}, "env.kwargs.gaol", "did you mean goal?"),
        ("no.such.package:Cart-v0", {}, "env.use", "there is no module 'no'"),
        ("no_such:make", {}, "env.use", "there is no module 'no_such'"),
        ("fake_algorithm:Maz", {}, "env.use", "fake_algorithm has no 'Maz' - did you mean Maze?"),
        ("fake_algorithm:CONSTANT", {}, "env.use", "cannot be called, it is of type int"),
        ("fake_algorithm:Maze", {}, "env", "needs the argument 'size'"),
        ("fake_algorithm:Maze", {"size": 1, "wall": 2}, "env.kwargs.wall", "did you mean walls?"),
        ("Labyrinth", {"size": 1, "wall": 2}, "env.kwargs.wall", "did you mean walls?"),
        (
            "CartPole-v1",
            {"suton": 1},
            "env.kwargs.suton",
            "takes no such argument, it takes sutton",
        ),
    ],
)
@pytest.mark.usefixtures("registered")
def test_wrong_environments(use: str, kwargs: dict[str, Any], key: str, message: str) -> None:
    ((found_key, found_message),) = problems(use, **kwargs)
    assert found_key == key
    assert message in found_message


@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, use: str, module: str, extra: str
) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda name: name != module)
    message = f'{use} needs {module}, which is not installed: pip install "rlrun[{extra}]"'
    assert problems(use) == [("env.use", message)]


def experiment(**sections: Any) -> ExperimentConfig:
    return ExperimentConfig(
        algorithm="fake_algorithm:Fake",
        env=EnvSpec(use="CartPole-v1"),
        training=TrainingConfig(),
        **sections,
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"callbacks": [UseSpec(use="fake_algorithm:Callback", kwargs={"every": 2})]}, None),
        (
            {"callbacks": [UseSpec(use="fake_algorithm:Callback", kwargs={"evry": 2})]},
            "it takes every - did you mean every?",
        ),
        ({"callbacks": [UseSpec(use="fake_algorithm:Calback")]}, "did you mean Callback?"),
        ({"report": {"sinks": ["tensorbord"]}}, "did you mean tensorboard?"),
        ({"report": {"sinks": ["console", "fake_algorithm:Callback"]}}, None),
        ({"env_runners": {"env_runner_cls": "fake_algorithm:No"}}, "fake_algorithm has no 'No'"),
        ({"env_runners": {"sample_collector": "SimpleListCollector"}}, None),
        ({"env_runners": {"sample_collector": "fake_algorithm:Callback"}}, None),
        (
            {"env_runners": {"sample_collector": "SimpleListColector"}},
            "did you mean SimpleListCollector?",
        ),
        ({"model": ModelConfig(use="torch.nn:Linear", kwargs={"out_features": 3})}, None),
        (
            {"model": ModelConfig(use="torch.nn:Linear", kwargs={"out_feature": 3})},
            "did you mean out_features?",
        ),
    ],
)
def test_code_of_other_sections(sections: dict[str, Any], message: str | None) -> None:
    found = [finding.message for finding in check_code(experiment(**sections))]
    if message is None:
        assert found == []
    else:
        assert message in found[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_thing", "broken needs the module 'no_such_thing', which is missing"),
        ("1 / 0", "importing broken failed: ZeroDivisionError: division by zero"),
        ("def f(:", "importing broken failed: SyntaxError: "),
    ],
)
def test_code_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportPathError) as caught:
        import_object("broken:f")
    assert str(caught.value).startswith(message)


def test_the_working_directory_is_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "lying_beside.py").write_text("value = 7")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    assert import_object("lying_beside:value") == 7


def test_import_paths_go_both_ways() -> None:
    assert import_path_of(Path) is None or import_object(str(import_path_of(Path))) is Path
    assert import_path_of(nearest) == "rlrun.config.registry:nearest"
    assert import_path_of(lambda: 0) is None
    with pytest.raises(ImportPathError, match="expected"):
        import_object("just_a_word")

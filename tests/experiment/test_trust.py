"""Run folders of other users: their code is not imported, their links are not followed."""

import shutil
import sys
from pathlib import Path

import pytest

from rlrun import load_policy
from rlrun.cli.main import main
from rlrun.config.trust import TrustError, require_trust, signed_yaml
from rlrun.config.validate import validate
from rlrun.config.yaml_tree import parse_yaml
from rlrun.experiment.rollout import rollout
from rlrun.experiment.run import resume_experiment, run_experiment
from rlrun.experiment.run_folder import RunFolderError
from rlrun.experiment.sweep.sweep import resume_sweep

SPY = """
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv as Env

Path("imported").touch()
"""
FILE = """
algorithm: PPO
env: {use: "MODULE:Env", render_mode: rgb_array}
seed: 1
stop: {training_iteration: 1}
model: {hidden: [4]}
training: {train_batch_size: 16, minibatch_size: 16, num_epochs: 1}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, request):
    """A run whose environment notes when it is imported, and was not imported since."""
    monkeypatch.chdir(tmp_path)
    name = f"spy_{abs(hash(request.node.name))}"
    Path(f"{name}.py").write_text(SPY)
    monkeypatch.syspath_prepend(tmp_path)
    Path("file.yaml").write_text(FILE.replace("MODULE", name))
    run_experiment("file.yaml", run_dir="run", console="quiet")
    sys.modules.pop(name)
    Path("imported").unlink()
    return Path("run")


@pytest.fixture
def as_another_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))


@pytest.fixture
def rlrun_words(monkeypatch):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["rlrun", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return call


def test_a_signature_holds_where_arguments_have_keys_that_are_no_text(tmp_path, as_another_user):
    kwargs = {"rewards": {1: "my:code", "b": {True: 1.5}}}
    data = {"algorithm": "PPO", "env": {"use": "my:Env", "kwargs": kwargs}}
    file = tmp_path / "config.yaml"
    file.write_text(signed_yaml(validate(data)[0]))
    require_trust(file, parse_yaml(file.read_text(), "f").plain())


COMMANDS = {
    "resume": lambda trust: resume_experiment("run", ["stop.training_iteration=2"], trust=trust),
    "rollout": lambda trust: rollout("run", episodes=1, trust=trust),
    "rollout of a checkpoint": lambda trust: rollout("run/checkpoints/best", steps=1, trust=trust),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_code_of_another_users_run_is_listed_and_needs_trust(run, as_another_user, command):
    with pytest.raises(TrustError, match=r"env\.use: spy_\d+:Env\nSignatures.*--trust"):
        COMMANDS[command](False)
    assert not Path("imported").exists()
    COMMANDS[command](True)
    assert Path("imported").exists()


def test_a_policy_is_loaded_without_its_environment_which_need_not_be_trusted(run, as_another_user):
    assert load_policy("run").action_space.n == 2
    assert not Path("imported").exists()


def test_check_of_another_users_run_never_imports_its_code(run, as_another_user, rlrun_words):
    assert rlrun_words("check", "run") == 2
    assert not Path("imported").exists()


def test_ones_own_run_is_trusted_where_it_was_moved_and_with_other_settings(run):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.99", "gamma: 0.98"))
    shutil.move("run", "moved")
    resume_experiment("moved", ["stop.training_iteration=2"], console="quiet")
    assert rollout("moved", episodes=1).episodes


@pytest.mark.parametrize("change", [("spy_", "os_"), ("rgb_array", "human"), ("Env", "Other")])
def test_a_signature_holds_for_no_other_code(run, change):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(*change))
    with pytest.raises(TrustError):
        resume_experiment(run)


def test_a_run_that_was_resumed_with_trust_is_ones_own(run, as_another_user):
    resume_experiment(run, ["stop.training_iteration=2"], trust=True)
    resume_experiment(run, ["stop.training_iteration=3"])


def test_resume_auto_takes_a_run_that_names_the_code_of_ones_own_file(run, as_another_user):
    text = Path("file.yaml").read_text()
    first = run_experiment("file.yaml", run_dir="run", resume=True, console="quiet")
    assert first.folder == run
    Path("other.yaml").write_text(text.replace("rgb_array", "human"))
    with pytest.raises(RunFolderError, match="another configuration"):
        run_experiment("other.yaml", run_dir="run", resume=True, console="quiet")


def test_without_a_home_directory_the_message_names_the_key(run, monkeypatch):
    Path("file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path("file").absolute()))
    run_experiment("file.yaml", run_dir="keyless", console="quiet")
    with pytest.raises(TrustError, match="file/rlrun/key"):
        resume_experiment("keyless")


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "checkpoints", "tensorboard/events"])
def test_nothing_is_written_through_a_link_out_of_the_folder(run, name):
    Path("outside").write_text("untouched")
    link = run / name
    link.parent.mkdir(exist_ok=True)
    shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
    link.symlink_to(Path("outside").absolute())
    with pytest.raises(RunFolderError, match=f"{name}: a link out of the run folder"):
        resume_experiment(run, ["stop.training_iteration=2"])
    assert Path("outside").read_text() == "untouched"


def test_the_environment_variables_are_never_written(run, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "marker-7351")
    resume_experiment(run, ["stop.training_iteration=3"], console="quiet")
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"marker-7351" in path.read_bytes()]
    assert not [path for path in files if b"MY_SECRET" in path.read_bytes()]


def test_settings_of_trials_name_no_code_that_the_sweep_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = FILE.replace('"MODULE:Env", render_mode: rgb_array', "CartPole-v1")
    Path("sweep.yaml").write_text(text)
    Path("trials.jsonl").write_text(
        '{"trial": 1, "point": 1, "seed": 1, "settings": {"env.use": "os:system"}}\n'
    )
    Path(".lock").touch()
    space = "sweep: {space: {training.lr: {grid: [1e-3]}}}\n"
    Path("sweep.yaml").write_text(text + space)
    with pytest.raises(TrustError, match=r"env\.use: os:system"):
        resume_sweep(tmp_path)

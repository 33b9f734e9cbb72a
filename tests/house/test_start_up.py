"""Starting is cheap, and every public name of the package can be imported."""

import subprocess
import sys

import pytest
from source_tree import ROOT

import rlrun

HEAVY = {"torch", "ray", "numpy", "gymnasium", "pandas", "scipy"}


def _python(code, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["rollout", "--help"]])
def test_help_imports_little_and_nothing_heavy(arguments):
    code = f"""
import sys
from rlrun.cli.main import main
sys.argv = ["rlrun", *{arguments!r}]
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
print("LOADED", *sys.modules)
"""
    done = _python(code, "-W", "error")
    assert done.returncode == 0, done.stderr
    modules = done.stdout.rsplit("LOADED", 1)[1].split()
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & HEAVY
    assert len(modules) < 350
    if arguments == ["--help"]:  # of a command, typer itself imports pydantic
        assert not loaded & {"pydantic", "yaml"}
        assert len(modules) < 200


def test_runs_are_managed_without_torch_ray_or_their_code(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.yaml").write_text("algorithm: PPO\nenv: raises_at_import:Env\n")
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError")
    run, home = str(tmp_path / "a"), str(tmp_path)
    calls = [["ls", home], ["show", run], ["diff", run, run], ["du", home], ["tail", run]]
    code = f"""
import sys
from rlrun.cli.main import main
for words in {[*calls, ["rm", "--yes", run]]!r}:
    sys.argv = ["rlrun", *words]
    try:
        main()
    except SystemExit as exit:
        assert not exit.code, (words, exit.code)
print("LOADED", *{{name.partition(".")[0] for name in sys.modules}})
"""
    done = _python(code, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert not {"torch", "ray", "gymnasium"} & set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_importing_rlrun_imports_nothing_heavy():
    done = _python("import sys, rlrun; print(*{n.split('.')[0] for n in sys.modules})")
    assert not set(done.stdout.split()) & (HEAVY | {"pydantic", "yaml", "rich", "typer"})


def test_windows_is_told_what_to_use():
    done = _python("import sys; sys.platform = 'win32'; import rlrun")
    assert "ImportError: rlrun runs on Linux and macOS; on Windows use WSL 2" in done.stderr


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.faults)])
def test_training_needs_nothing_that_linux_alone_has(tmp_path, mode):
    """Such as /proc, the affinity of a process, or workers that are forked."""
    code = """
import ctypes, multiprocessing, os, sys, sysconfig
import torch, gymnasium, pydantic
from rlrun.cli.main import main

LINUX = ("/proc", "/sys", "/dev/shm")

def no_library(name):
    assert name is not None, "the C library is Linux's"

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(LINUX):
        raise FileNotFoundError(arguments[0])

if __name__ == "__main__":
    sysconfig.get_config_vars()  # has a file for each system
    sys.platform = "darwin"
    del os.sched_getaffinity
    ctypes.CDLL = no_library
    multiprocessing.set_start_method("spawn")
    sys.addaudithook(refuse)
    mode, folder = sys.argv[1:]
    envs = ["num_env_runners=0", "num_envs_per_env_runner=2", "gym_env_vectorize_mode=" + mode]
    words = ["train", "ppo/cartpole", "stop.training_iteration=1", "--quiet", "--run-dir", folder]
    words += ["training.train_batch_size=64", "training.minibatch_size=32"]
    sys.argv = ["rlrun", *words, *("env_runners." + word for word in envs)]
    main()
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, script, mode, tmp_path / "run"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", sorted(rlrun.__all__))
def test_public_name_imports(name):
    thing = getattr(rlrun, name)
    assert thing.__name__ == name
    assert thing.__doc__
    assert name in dir(rlrun)


def test_public_names_are_there():
    expected = {
        "Algorithm",
        "AlgorithmConfig",
        "EnvRunner",
        "EnvRunnerGroup",
        "Learner",
        "MultiAgentBatch",
        "PPO",
        "PPOConfig",
        "Policy",
        "RLModule",
        "SampleBatch",
        "load_experiment",
        "run_experiment",
    }
    assert expected <= set(rlrun.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rlrun' has no attribute 'PPOO'"):
        rlrun.PPOO  # noqa: B018

"""Mutated configs and checkpoints are accepted, or refused in one message that names the place."""

import random
from dataclasses import replace
from functools import partial

import pytest

from rlrun.checkpoint.checkpoint import (
    CheckpointError,
    read_checkpoint,
    restore_checkpoint,
    write_checkpoint,
)
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError
from rlrun.config.registry import configs_folder
from rlrun.envs.errors import EnvError
from rlrun.experiment.rollout import build_alone
from rlrun.experiment.run import run_experiment

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 1
stop: {training_iteration: 1}
model: {hidden: [4]}
training: {train_batch_size: 16, minibatch_size: 16, num_epochs: 1}
"""
PIECES = (
    *(
        "\0",
        "\t",
        "\n",
        ":",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "&a",
        "*a",
        "!!python/name:os.system",
    ),
    *("null", "true", ".nan", "-.inf", "1e999", "9" * 400, "-1", "0", "x" * 5000, "[" * 1500),
    *(
        "{use: 1}",
        "{use: 'os:system'}",
        "[[0, 1], [0, 2]]",
        "\u0085",
        "\ufeff",
        "auto",
        "a:b",
        "---",
    ),
)
WRONG = (None, True, -1, 2**70, float("nan"), "x", [], {}, [[1]], {"use": 1}, b"\0")
SEED = 7


def tier(few, many):
    """A number of mutants for the fast tests, and one for `make test-faults`."""
    return [few, pytest.param(many, marks=pytest.mark.faults)]


def refusal(call, kind):
    """The error of this kind that the call raises; None if it raises none."""
    try:
        call()
    except kind as error:
        return error
    return None


def mutated_text(rng, text):
    """Some characters or lines replaced, removed, doubled or swapped."""
    for _ in range(rng.randint(1, 3)):
        lines = text.splitlines(keepends=True) or [""]
        at, line = rng.randrange(len(text) + 1), rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                text = text[:at] + rng.choice(PIECES) + text[at + rng.randint(0, 8) :]
            case 1:
                text = "".join(lines[:line] + lines[line + 1 :])
            case 2:
                text = "".join([*lines[:line], lines[line], *lines[line:]])
            case 3:
                key, colon, _ = lines[line].partition(":")
                lines[line] = f"{key}{colon} {rng.choice(PIECES)}\n"
                text = "".join(lines)
            case _:
                text = text[:at] + text[at + rng.randint(1, 8) :]
    return text


@pytest.mark.parametrize("number", tier(60, 5_000))
def test_a_mutated_config_is_an_experiment_or_problems_with_their_places(number, tmp_path):
    rng = random.Random(SEED)
    sources = [path.read_text() for path in sorted(configs_folder().glob("*.yaml"))]
    file = tmp_path / "mutant.yaml"
    for i in range(number):
        text = mutated_text(rng, rng.choice(sources))
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            error = refusal(partial(load, file), ConfigError)
        except Exception as other:
            raise AssertionError(f"mutant {i} of seed {SEED}:\n{text}") from other
        for problem in () if error is None else error.problems:
            assert problem.origin.line or problem.key, (i, text)
            assert "Traceback" not in problem.message, (i, text)


def mutated_state(rng, value):
    """The nested state with one value, at a random place, replaced or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(sorted(value, key=repr))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if rng.random() < 0.1 else {**value, key: mutated_state(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutated_state(rng, value[at]), *value[at + 1 :]]
    return rng.choice(WRONG)


def mutated_file(rng, directory):
    """Some bytes of one file changed, inserted or cut off."""
    path = rng.choice(sorted(directory.iterdir()))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + rng.randint(1, 64)]
        case _:
            data[at:at] = rng.randbytes(rng.randint(1, 64))
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutations")
    (root / "ppo.yaml").write_text(FILE)
    run_experiment(root / "ppo.yaml", run_dir=root / "run", console="quiet")
    return root / "run/checkpoints/000001"


@pytest.mark.parametrize("number", tier(100, 2_500))
def test_every_changed_byte_of_a_checkpoint_is_noticed(whole, tmp_path, number):
    rng = random.Random(SEED)
    path, checkpoint = tmp_path / "000001", read_checkpoint(whole)
    for i in range(number):
        path.mkdir(exist_ok=True)
        for source in whole.iterdir():
            (path / source.name).write_bytes(source.read_bytes())
        mutated_file(rng, path)
        error = refusal(partial(read_checkpoint, path), CheckpointError)
        if error is not None:
            assert str(path) in str(error), i
        else:  # white space of the manifest
            assert read_checkpoint(path).row == checkpoint.row, i


@pytest.mark.parametrize("number", tier(40, 800))
def test_a_state_of_another_form_is_refused_with_its_checkpoint(whole, tmp_path, number):
    rng = random.Random(SEED)
    checkpoint = read_checkpoint(whole)
    experiment = load(whole / "config.yaml").experiment
    for i in range(number):
        path = tmp_path / "000001"
        write_checkpoint(path, replace(checkpoint, state=mutated_state(rng, checkpoint.state)))
        algorithm = build_alone(experiment)
        found = read_checkpoint(path)
        # A replayed action that the environment refuses is an EnvError, which names the place.
        refusals = (CheckpointError, EnvError)
        error = refusal(partial(restore_checkpoint, algorithm, found), refusals)
        assert error is None or str(path) in str(error) or "sub-env 0" in str(error), i
        algorithm.stop()

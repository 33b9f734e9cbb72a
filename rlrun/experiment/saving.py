"""Between an algorithm and its checkpoints: take one, and put one back.

Owns what of an algorithm goes into a checkpoint and the checks before a state is put back. It must
not know when that happens (run.py) nor how it is stored (checkpoint.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from rlrun.config.dump import dump_yaml
from rlrun.data.results import plain_row

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm


def take_checkpoint(algorithm: "Algorithm", result: Mapping[str, Any]) -> Checkpoint:
    """Everything that ``algorithm`` needs to go on from the iteration that gave ``result``."""
    return Checkpoint(
        algorithm=algorithm.config.algorithm,
        row={"training_iteration": algorithm.iteration, **plain_row(result)},
        state=algorithm.get_state(),
        weights=algorithm.get_weights(),
        config_yaml=dump_yaml(algorithm.config),
    )


def put_back(algorithm: "Algorithm", checkpoint: Checkpoint) -> None:
    """Let ``algorithm`` stand where the checkpoint was taken; CheckpointError if it misfits."""
    expected = algorithm.config.algorithm
    if checkpoint.algorithm != expected:
        raise CheckpointError(
            f"{checkpoint.path}: a checkpoint of {checkpoint.algorithm}, not of {expected}"
        )
    if algorithm.multi_agent is not None and checkpoint.state.get("policies"):
        algorithm.multi_agent.match(checkpoint.state["policies"])
    difference = _first_difference(algorithm.get_weights(), checkpoint.weights)
    if difference:
        raise CheckpointError(f"{checkpoint.path}: does not fit this env and model: {difference}")
    try:
        algorithm.set_weights(checkpoint.weights)
        algorithm.set_state(checkpoint.state)
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{checkpoint.path}: its state does not fit this experiment: {reason}"
        ) from error


def save_algorithm(algorithm: "Algorithm", path: Path, result: Mapping[str, Any]) -> None:
    """Write a checkpoint outside of any run folder; ``Algorithm.save`` ends here.

    ``result`` may be empty: then the checkpoint's row holds only the iteration.
    """
    write_checkpoint(path, take_checkpoint(algorithm, result))


def restore_algorithm(algorithm: "Algorithm", path: Path) -> None:
    """Read a checkpoint into ``algorithm``; ``Algorithm.restore`` ends here."""
    put_back(algorithm, read_checkpoint(path))


def _first_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    for name, array in expected.items():
        if name not in found:
            return f"it has no parameter {name}"
        if tuple(found[name].shape) != tuple(array.shape):
            return f"{name} has shape {tuple(found[name].shape)}, not {tuple(array.shape)}"
    extra = next((name for name in found if name not in expected), None)
    return None if extra is None else f"there is no place for its parameter {extra}"

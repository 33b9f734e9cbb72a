"""One checkpoint: a directory that is complete or absent, and is read without pickle.

Owns the files of a checkpoint, their checksums, and the checks before an algorithm restores one. It
must not know which checkpoints are kept (checkpoint_folder.py) nor what the state means, except
where a replay buffer is.

===================  =============================================================
manifest.json        format, algorithm, result row; size and sha256 of the others; its own sha256
config.yaml          the resolved configuration, so that the directory stands alone
weights.safetensors  the policies' parameters by name
state.json           the rest of the state
state.safetensors    the arrays that state.json refers to
===================  =============================================================
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlrun.checkpoint.files import replaced_directory
from rlrun.checkpoint.state_codec import StateError, array_names, decode, encode
from rlrun.config.problems import InputError
from rlrun.config.schema import ExperimentConfig
from rlrun.config.trust import signed_yaml
from rlrun.data.results import plain_row

FORMAT = "rlrun-checkpoint"
FORMAT_VERSION = 4  # 3: one layout for one and for several agents; 4: a sha256 of the manifest

MANIFEST = "manifest.json"
_LASTING = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.ESTALE,
}
_FILES = ("config.yaml", "weights.safetensors", "state.json", "state.safetensors")
_SYSTEM_PREFIXES = (".DS_Store", ".nfs")  # of files that macOS and NFS leave in folders


class CheckpointError(InputError):
    """A checkpoint cannot be written or read; the message is one line and names the path."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint is of another format version than this rlrun reads."""


class CheckpointWriteError(CheckpointError):
    """The disk is full, or a value cannot be written; older checkpoints are intact."""

    exit_code = 1

    @property
    def is_lasting(self) -> bool:
        """Whether another try would also fail: for a wrong path or value, not for a full disk."""
        cause = self.__cause__
        return isinstance(cause, StateError) or (
            isinstance(cause, OSError) and cause.errno in _LASTING
        )


@dataclass(frozen=True)
class Checkpoint:
    """The content of one checkpoint."""

    algorithm: str
    """Name of the algorithm."""
    row: dict[str, Any]
    """Result of the iteration after which the checkpoint was taken, as plain values."""
    state: dict[str, Any]
    """All state that the next iteration depends on, except the weights."""
    weights: dict[str, np.ndarray]
    """Parameters by name."""
    config_yaml: str
    """The resolved configuration."""
    path: Path = field(default=Path(), compare=False)
    """Directory that it was read from."""

    @property
    def iteration(self) -> int:
        """Training iteration after which the checkpoint was taken."""
        return int(self.row["training_iteration"])


class Checkpointed(Protocol):
    """The part of an algorithm that checkpoints use."""

    config: ExperimentConfig
    policies: Any

    def get_state(self) -> dict[str, Any]:
        """All state that the next iteration depends on, except the weights."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set the state, after the weights."""

    def get_weights(self) -> dict[str, np.ndarray]:
        """Parameters by name."""

    def buffer_names(self) -> Collection[str]:
        """Names of those that are buffers, which need not be finite."""

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the parameters."""

    def match_policies(self, state: Mapping[str, Any]) -> None:
        """Add and remove policies to match a state, before weights and state are loaded."""

    def after_restore(self) -> None:
        """Call callbacks, after weights and state have been set."""

    def stop(self) -> None:
        """Stop its processes; it cannot be used afterwards."""


def take_checkpoint(
    algorithm: Checkpointed, result: Mapping[str, Any], config_yaml: str | None = None
) -> Checkpoint:
    """A checkpoint of ``algorithm`` after the iteration with this ``result``.

    Args:
        config_yaml: the configuration as text, if known: making it takes longer than all the rest.

    Raises:
        CheckpointWriteError: a weight is NaN or infinite, so that training could not continue.
    """
    weights = algorithm.get_weights()
    buffers = algorithm.buffer_names()
    for name, array in weights.items():
        if name not in buffers and not np.isfinite(array).all():
            raise CheckpointWriteError(f"no checkpoint is written: weights {name} are not finite")
    return Checkpoint(
        algorithm=algorithm.config.algorithm,
        row=plain_row(result),
        state=algorithm.get_state(),
        weights=weights,
        config_yaml=config_yaml or signed_yaml(algorithm.config),
    )


def restore_checkpoint(algorithm: Checkpointed, checkpoint: Checkpoint) -> None:
    """Set weights and state of ``algorithm``, or stop it: a partly restored one cannot be used.

    Raises:
        CheckpointError: the checkpoint does not fit the algorithm.
    """
    try:
        _restore(algorithm, checkpoint)
        algorithm.after_restore()
    except BaseException:
        algorithm.stop()
        raise


def _restore(algorithm: Checkpointed, checkpoint: Checkpoint) -> None:
    expected = algorithm.config.algorithm
    if checkpoint.algorithm != expected:
        raise CheckpointError(
            f"{checkpoint.path}: a checkpoint of {checkpoint.algorithm}, not of {expected}"
        )
    try:
        algorithm.match_policies(checkpoint.state)
        difference = first_difference(algorithm.get_weights(), checkpoint.weights)
        if difference is None:
            algorithm.set_weights(checkpoint.weights)
            algorithm.set_state(checkpoint.state)
    except Exception as error:  # any, as the state may hold anything; but an EnvError says more
        if hasattr(error, "exit_code"):
            raise
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):  # of a part that the experiment has got since
            reason = f"it holds no {error}"
        elif isinstance(error, ValueError):  # which says what does not fit
            reason = str(error)
        raise CheckpointError(
            f"{checkpoint.path}: its state does not fit this experiment: {reason}"
        ) from error
    if difference:
        raise CheckpointError(f"{checkpoint.path}: does not fit this env and model: {difference}")


def first_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """The first parameter that is missing, unexpected or of another shape, in words."""
    for name, array in expected.items():
        if name not in found:
            return f"it has no parameter {name}"
        if tuple(found[name].shape) != tuple(array.shape):
            return f"{name} has shape {tuple(found[name].shape)}, not {tuple(array.shape)}"
    extra = next((name for name in found if name not in expected), None)
    return None if extra is None else f"it has the additional parameter {extra}"


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint`` as ``directory``, whole or not at all.

    Raises:
        CheckpointWriteError: the disk refuses, the state cannot be stored, or the directory holds
            something else than an earlier checkpoint.
    """
    from safetensors import SafetensorError

    try:
        _require_replaceable(directory)
        encoded = encode(checkpoint.state, copy=False)
        with replaced_directory(directory) as new:
            _write_files(new, checkpoint, *encoded)
    except (OSError, StateError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CheckpointWriteError(
            f"{directory}: the checkpoint could not be written: {reason}"
        ) from error


def _require_replaceable(directory: Path) -> None:
    """Raise OSError if there is a file, or a directory with more than a checkpoint's files."""
    with suppress(FileNotFoundError):
        found = [name for name in os.listdir(directory) if not name.startswith(_SYSTEM_PREFIXES)]
        if others := set(found).difference((MANIFEST, *_FILES)):
            reason = f"the folder holds {min(others)}, which is no part of a checkpoint"
            raise OSError(errno.ENOTEMPTY, f"{reason} and would be lost: name another folder")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest and the sizes of the files that it lists, not their contents."""
    if not os.path.isdir(directory):
        raise CheckpointError(f"{directory}: no such checkpoint")
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        known = manifest["format"] == FORMAT
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: not an rlrun checkpoint: no {MANIFEST}") from None
    except OSError as error:
        raise CheckpointError(f"{directory}: {MANIFEST}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError):
        known = False
    if not known:
        raise CheckpointError(
            f"{directory}: not an rlrun checkpoint: {MANIFEST} is damaged or foreign"
        )
    _check_version(directory, manifest.get("version"))
    if manifest.pop("sha256", None) != _digest(manifest):
        raise CheckpointError(f"{directory}: the checkpoint is damaged: {MANIFEST} has changed")
    _check_sizes(directory, manifest)
    return dict(manifest)


def read_checkpoint(directory: Path, *, replay: bool = True) -> Checkpoint:
    """Read a checkpoint; nothing in it is ever executed.

    Args:
        replay: also load the replay buffer, if it is stored.

    Raises:
        CheckpointError: it is missing, incomplete, damaged, of another version, or not rlrun's.
    """
    manifest = read_manifest(directory)
    for name in _FILES:
        _verify(directory, name, manifest)
    import safetensors.numpy

    try:
        return Checkpoint(
            algorithm=str(manifest["algorithm"]),
            row=manifest["row"],
            state=_read_state(directory, replay=replay),
            weights=safetensors.numpy.load_file(directory / "weights.safetensors"),
            config_yaml=(directory / "config.yaml").read_bytes().decode(),
            path=directory,
        )
    except Exception as error:  # any: a state may hold anything, with the right checksums, too
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{directory}: the checkpoint cannot be decoded: {reason}") from error


def _read_state(directory: Path, *, replay: bool) -> dict[str, Any]:
    import safetensors

    document = json.loads((directory / "state.json").read_bytes())
    if not replay:
        kept = document.get("algorithm", {}).get("replay")
        if isinstance(kept, dict) and "buffer" in kept:  # an algorithm's own part may be any
            kept["buffer"] = None
    with safetensors.safe_open(directory / "state.safetensors", framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in array_names(document)}
    state: dict[str, Any] = decode(document, arrays)
    return state


def _write_files(
    directory: Path, checkpoint: Checkpoint, document: Any, arrays: dict[str, np.ndarray]
) -> None:
    """Write the files of a checkpoint, the manifest last.

    Arrays go to disk without copies: those of a replay buffer may take most of the memory.

    Args:
        document, arrays: the encoded state.
    """
    import safetensors.numpy

    weights = {name: np.ascontiguousarray(array) for name, array in checkpoint.weights.items()}
    (directory / "config.yaml").write_bytes(checkpoint.config_yaml.encode())
    (directory / "state.json").write_text(json.dumps(document, allow_nan=False, indent=1))
    for name, content in ("weights.safetensors", weights), ("state.safetensors", arrays):
        safetensors.numpy.save_file(content, directory / name)
        # Its own mode would hide the file from other users.
        shutil.copymode(directory / "config.yaml", directory / name)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "algorithm": checkpoint.algorithm,
        "training_iteration": checkpoint.iteration,
        "files": {
            name: {"bytes": (directory / name).stat().st_size, "sha256": _sha256(directory / name)}
            for name in _FILES
        },
        "row": checkpoint.row,
    }
    manifest["sha256"] = _digest(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, allow_nan=False, indent=1))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(manifest: Mapping[str, Any]) -> str:
    """sha256 of a manifest's values, in their order."""
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()


def _check_version(directory: Path, version: Any) -> None:
    if version == FORMAT_VERSION:
        return
    is_older = isinstance(version, int) and version < FORMAT_VERSION
    writer = "an older version" if is_older else "another, probably newer version"
    raise CheckpointVersionError(
        f"{directory}: written by {writer} of rlrun, in checkpoint format {version}; "
        f"this version reads format {FORMAT_VERSION} only"
    )


def _check_sizes(directory: Path, manifest: dict[str, Any]) -> None:
    for name in _FILES:
        promised = manifest["files"][name]["bytes"]
        try:
            found = (directory / name).stat().st_size
        except OSError:
            raise CheckpointError(f"{directory}: the checkpoint is incomplete: no {name}") from None
        if found != promised:
            raise CheckpointError(
                f"{directory}: the checkpoint is damaged: "
                f"{name} has {found:,} bytes, not {promised:,}"
            )


def _verify(directory: Path, name: str, manifest: dict[str, Any]) -> None:
    try:
        found = _sha256(directory / name)
    except OSError as error:
        raise CheckpointError(f"{directory}: {name} cannot be read: {error.strerror}") from error
    if found != manifest["files"][name]["sha256"]:
        raise CheckpointError(
            f"{directory}: the checkpoint is damaged: the sha256 of {name} differs"
        )

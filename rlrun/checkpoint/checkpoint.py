"""One checkpoint: a directory that is written whole or not at all, and read without pickle.

Owns the files of a checkpoint and the proof that they are complete. It must not know which
checkpoints a run keeps (checkpoint_folder.py) nor what the state means (the algorithm).

===================  =============================================================
manifest.json        format, algorithm, the result row, size and sha256 of the rest
config.yaml          the resolved experiment, so that the directory stands alone
weights.safetensors  the policy's parameters by name
state.json           everything else that ``Algorithm.get_state()`` gave
state.safetensors    the arrays that state.json refers to
===================  =============================================================

The files go to a temporary directory beside the target, are synced to disk, and appear under the
final name by one rename: a kill at any moment leaves either no checkpoint or a complete one.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.checkpoint.state_codec import StateError, decode, encode

FORMAT = "rlrun-checkpoint"
FORMAT_VERSION = 2  # 2: a learner for each policy

MANIFEST = "manifest.json"
_FILES = ("config.yaml", "weights.safetensors", "state.json", "state.safetensors")


class CheckpointError(Exception):
    """A checkpoint cannot be written or used; the message is one line and names the path."""

    exit_code = 2


class CheckpointWriteError(CheckpointError):
    """The disk or the state refused; checkpoints written before are untouched."""

    exit_code = 1


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds."""

    algorithm: str
    """The algorithm's name as the experiment file gives it."""
    row: dict[str, Any]
    """The result of the iteration after which it was taken; resume repairs metrics.jsonl by it."""
    state: dict[str, Any]
    """``Algorithm.get_state()``."""
    weights: dict[str, np.ndarray]
    """Parameters by name."""
    config_yaml: str
    """The resolved experiment file."""
    path: Path = field(default=Path(), compare=False)
    """Where it was read from."""

    @property
    def iteration(self) -> int:
        """The training iteration that it completes."""
        return int(self.row["training_iteration"])


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint`` as ``directory``; CheckpointWriteError if the disk or the state refuses.

    A directory of that name is replaced once the new one is complete.
    """
    temporary = directory.parent / f".writing-{directory.name}-{os.getpid()}"
    try:
        contents = _serialise(checkpoint)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, data in contents.items():
            _write_synced(temporary / name, data)
        _sync_directory(temporary)
        _put_in_place(temporary, directory)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror or str(error)
        raise CheckpointWriteError(
            f"{directory}: the checkpoint could not be written: {reason}"
        ) from error
    except StateError as error:
        raise CheckpointWriteError(
            f"{directory}: the checkpoint could not be written: {error}"
        ) from error


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and validate a checkpoint's manifest and the sizes it promises, not the contents."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such checkpoint")
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        known = manifest["format"] == FORMAT
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: not an rlrun checkpoint: no {MANIFEST}") from None
    except (ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise CheckpointError(
            f"{directory}: not an rlrun checkpoint: {MANIFEST} is damaged or foreign"
        )
    if manifest.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{directory}: written in checkpoint format {manifest.get('version')}; "
            f"this rlrun reads format {FORMAT_VERSION}"
        )
    _check_sizes(directory, manifest)
    return dict(manifest)


def read_checkpoint(directory: Path, *, algorithm: str | None = None) -> Checkpoint:
    """Read a complete checkpoint; nothing in it is ever executed.

    Raises CheckpointError if it is incomplete, damaged, foreign, or not one of ``algorithm``.
    """
    manifest = read_manifest(directory)
    if algorithm is not None and manifest["algorithm"] != algorithm:
        raise CheckpointError(
            f"{directory}: a checkpoint of {manifest['algorithm']}, not of {algorithm}"
        )
    contents = {name: _read_verified(directory, name, manifest) for name in _FILES}
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(contents["state.safetensors"])
        return Checkpoint(
            algorithm=str(manifest["algorithm"]),
            row=manifest["row"],
            state=decode(json.loads(contents["state.json"]), arrays),
            weights=safetensors.numpy.load(contents["weights.safetensors"]),
            config_yaml=contents["config.yaml"].decode(),
            path=directory,
        )
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{directory}: the checkpoint cannot be decoded: {error}") from error


def _serialise(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Give every file of the checkpoint as bytes, the manifest last."""
    import safetensors.numpy

    document, arrays = encode(checkpoint.state)
    weights = {name: np.ascontiguousarray(array) for name, array in checkpoint.weights.items()}
    contents = {
        "config.yaml": checkpoint.config_yaml.encode(),
        "weights.safetensors": safetensors.numpy.save(weights),
        "state.json": json.dumps(document, allow_nan=False, indent=1).encode(),
        "state.safetensors": safetensors.numpy.save(arrays),
    }
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "algorithm": checkpoint.algorithm,
        "training_iteration": checkpoint.iteration,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        },
        "row": checkpoint.row,
    }
    contents[MANIFEST] = json.dumps(manifest, allow_nan=False, indent=1).encode()
    return contents


def _check_sizes(directory: Path, manifest: dict[str, Any]) -> None:
    for name in _FILES:
        try:
            promised = manifest["files"][name]["bytes"]
            found = (directory / name).stat().st_size
        except (KeyError, TypeError):
            raise CheckpointError(f"{directory}: {MANIFEST} does not list {name}") from None
        except OSError:
            raise CheckpointError(f"{directory}: the checkpoint is incomplete: no {name}") from None
        if found != promised:
            raise CheckpointError(
                f"{directory}: the checkpoint is damaged: "
                f"{name} has {found:,} bytes, not {promised:,}"
            )


def _read_verified(directory: Path, name: str, manifest: dict[str, Any]) -> bytes:
    try:
        data = (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{directory}: {name} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != manifest["files"][name]["sha256"]:
        raise CheckpointError(
            f"{directory}: the checkpoint is damaged: the sha256 of {name} differs"
        )
    return data


def _put_in_place(temporary: Path, directory: Path) -> None:
    replaced = directory.parent / f".replaced-{directory.name}-{os.getpid()}"
    if directory.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(directory, replaced)
    os.rename(temporary, directory)
    _sync_directory(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

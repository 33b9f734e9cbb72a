"""Trained policies as files for other programs: ONNX and TorchScript.

Owns which files are written, and the proof that a file acts as the policy does before it appears
under its name. Must not know how a policy is exported (algorithms/exported_policy.py).
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rlrun.algorithms.exported_policy import (
    FORMATS,
    ExportedPolicy,
    Program,
    export_policy,
    named_leaves,
    nested,
)
from rlrun.config.problems import InputError
from rlrun.config.registry import install_hint, is_installed, no_such
from rlrun.data import columns as col
from rlrun.data.nested import ACTION_MASK, has_action_mask
from rlrun.experiment.rollout import find_checkpoint, restored_to_act
from rlrun.policies.action_sampling import action_layout
from rlrun.sampling.acting_policy import ActingPolicy

NUM_ENVS, NUM_STEPS = 50, 20
"""A file is compared with the policy on 1,000 observations: 50 environments, 20 steps each."""
TOLERANCE = 1e-5
"""Largest difference of an action, relative to actions above 1; float32 has 7 digits."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Export:
    """One file that was written."""

    path: Path
    policy_id: str
    checkpoint: Path
    signature: str
    """Inputs and outputs as JSON, as written in the file."""
    difference: float
    """Largest difference of an action on 1,000 observations, relative to actions above 1."""

    def lines(self) -> list[str]:
        """A description of the file: its policy, inputs and outputs."""
        found = json.loads(self.signature)
        lines = [
            f"{self.path}: policy {self.policy_id} of {self.checkpoint}; "
            f"{NUM_ENVS * NUM_STEPS:,} observations: same actions, "
            f"largest difference {self.difference:.1g}"
        ]
        for kind in ("inputs", "outputs"):
            for name, row in found[kind].items():
                shape = ", ".join(["N", *map(str, row["shape"])])
                lines.append(f"  {kind[:-1]:6} {name}: {row['dtype']} [{shape}]")
        return lines


def export(
    run_or_checkpoint: Path | str,
    *,
    onnx: Path | str | None = None,
    torchscript: Path | str | None = None,
    policy_id: str | None = None,
    trust: bool = False,
) -> list[Export]:
    """Write a trained policy, connectors included, as files that other programs read.

    The files answer observations of the environment with the environment's actions, without
    exploration. A file is written only if it answers 1,000 random observations as the policy does.

    Args:
        run_or_checkpoint, trust: see `rollout`.
        onnx: file in the Open Neural Network Exchange format.
        torchscript: file that ``torch.jit.load`` reads.
        policy_id: one of several policies; None: the only one.

    Raises:
        InputError: nothing to write, a package is missing, or the policy cannot be exported.
        TrustError, RunFolderError, CheckpointError: see `rollout`.
    """
    files = {"onnx": onnx, "torchscript": torchscript}
    paths = {name: Path(path) for name, path in files.items() if path is not None}
    if not paths:
        raise InputError("name a file to write: --onnx FILE, --torchscript FILE, or both")
    missing = [name for name in ONNX_PACKAGES if not is_installed(name)]
    if onnx is not None and missing:
        raise InputError(f"--onnx: not installed: {', '.join(missing)}: {install_hint('export')}")
    for path in paths.values():
        if path.is_dir() or not path.parent.is_dir():
            raise InputError(f"{path}: expected a file in a folder that exists")
    if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise InputError(f"{onnx}: --onnx and --torchscript need different files")
    checkpoint = find_checkpoint(Path(run_or_checkpoint))
    algorithm = restored_to_act(checkpoint, trust=trust)
    try:
        chosen = _chosen(list(algorithm.policies), policy_id)
        if onnx is not None and algorithm.policies[chosen].model.conv_dtype == "bfloat16":
            message = "ONNX Runtime has no convolutions in bfloat16 (model.conv_dtype)"
            raise InputError(f"{onnx}: {message}; --torchscript writes them")
        exported = export_policy(algorithm, chosen)
        return [
            Export(
                path=path,
                policy_id=chosen,
                checkpoint=checkpoint.path,
                signature=exported.signature(),
                difference=_write(
                    path,
                    exported,
                    *FORMATS[name],
                    algorithm.acting_policy(chosen, num_envs=NUM_ENVS),
                ),
            )
            for name, path in paths.items()
        ]
    finally:
        algorithm.stop()


def _chosen(policies: list[str], policy_id: str | None) -> str:
    if policy_id is None and len(policies) == 1:
        return policies[0]
    if policy_id is None:
        raise InputError(
            f"there are several policies, name one with --policy: {', '.join(policies)}"
        )
    if policy_id not in policies:
        raise InputError(no_such("policy", policy_id, policies))
    return policy_id


def _write(
    path: Path,
    exported: ExportedPolicy,
    write: Callable[[ExportedPolicy, Path], None],
    load: Callable[[Path], Program],
    acting: ActingPolicy,
) -> float:
    """Write a file, check that it acts as the policy does, and return the difference."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        try:
            write(exported, temporary)
            difference = _difference(exported, load(temporary), acting)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from None
        except Exception as error:  # of the exporter about the network, or of the file's reader
            cause: BaseException = error
            while cause.__cause__ is not None:  # the exporter says only that it has failed
                cause = cause.__cause__
            reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
            raise InputError(f"{path}: this network cannot be exported: {reason}") from error
        if not difference <= TOLERANCE:
            raise InputError(
                f"{path} is not written: its actions differ from the policy's by {difference:.3g}; "
                "a network whose steps depend on the numbers in its batch cannot be exported"
            )
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return difference


def _difference(exported: ExportedPolicy, program: Program, acting: ActingPolicy) -> float:
    """Largest difference of an action, relative to the largest actions above 1 in its dimension.

    NaN if one is not finite. Of actions that are integers, one may differ: two can be equally good.
    """
    rng = np.random.default_rng(0)
    memory = {
        name: np.repeat(row[None], NUM_ENVS, axis=0)
        for name, row in exported.inputs.items()
        if name.startswith(col.STATE_IN_PREFIX)
    }
    differences, num_choices = [0.0], 0
    for step in range(NUM_STEPS):
        leaves = _observations(acting, rng)
        rewards = np.float32(step > 0) * rng.standard_normal(NUM_ENVS, np.float32)
        expected = acting.compute_actions(nested(acting.observation_space, "obs", leaves), rewards)
        given = {**leaves, "rewards": rewards, **memory}
        found = program({name: given[name] for name in exported.inputs})
        memory = {
            name: found[name.replace(col.STATE_IN_PREFIX, col.STATE_OUT_PREFIX)] for name in memory
        }
        for name, path, _ in named_leaves(acting.action_space, "actions"):
            wanted: Any = expected
            for key in path:
                wanted = wanted[key]
            assert wanted.shape == found[name].shape
            if wanted.dtype.kind == "f":
                sizes = np.abs(wanted).max(axis=0, initial=1.0)
                differences.append(float(np.max(np.abs(wanted - found[name]) / sizes)))
            else:
                num_choices += int((wanted != found[name]).sum())
    return float(np.max([*differences, num_choices if num_choices > 1 else 0.0]))


def _observations(acting: ActingPolicy, rng: np.random.Generator) -> dict[str, Any]:
    """Random observations of all environments, by the names of their leaves."""
    leaves = {}
    for name, _, space in named_leaves(acting.observation_space, "obs"):
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            # Uniform samples from huge bounds would all be huge.
            numbers = 2.0 * rng.standard_normal((NUM_ENVS, *space.shape))
            leaves[name] = np.clip(numbers, space.low, space.high).astype(space.dtype)
        else:
            batch = batch_space(space, NUM_ENVS)
            batch.seed(int(rng.integers(2**31)))
            leaves[name] = np.asarray(batch.sample())
    if has_action_mask(acting.observation_space):
        mask = leaves[f"obs.{ACTION_MASK}"]
        categories = action_layout(acting.action_space).leaves[0].categories
        starts = np.cumsum([0, *categories[:-1]])
        mask[~np.logical_or.reduceat(mask != 0, starts, axis=1).all(axis=1)] = 1
    return leaves

"""ExportedPolicy: a trained policy with its connectors as one torch module, for other programs.

Owns what the connectors compute, in torch, and the two file formats that the module is written in.
It computes actions without exploration. Must not know of checkpoints or the command line.

The module takes and returns tensors alone, a row for each environment. Their names:

| name           | what it is                                                                     |
|----------------|--------------------------------------------------------------------------------|
| obs            | observations as the environment returns them ``[N, ...]``                      |
| obs.<key>      | the parts of Dict and Tuple observations, by key or position; none privileged  |
| rewards        | rewards of the steps before, float32 [N]; only for networks that see them      |
| state_in_<k>   | memory: the initial state in an episode's first step, then ``state_out_<k>``   |
| actions        | actions as the environment takes them, ``[N, ...]``; ``actions.<key>`` of parts |
| state_out_<k>  | memory for the next step                                                       |

    N  rows
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.problems import InputError
from rlrun.connectors.actions import ActionPipeline
from rlrun.connectors.observations import ObservationPipeline, Preprocessor
from rlrun.data import columns as col
from rlrun.data.column_data import Array, map_leaves
from rlrun.data.nested import (
    ACTION_MASK,
    OBSERVATION,
    Keys,
    leaf_spaces,
    map_space,
    row_form,
    without_mask,
)
from rlrun.data.trajectory_views import TrajectoryViews, View, source_rows
from rlrun.policies.action_sampling import (
    ActionLeaf,
    SamplingPolicy,
    SquashedGaussianSampler,
    action_layout,
)
from rlrun.policies.chosen_distributions import TorchSampler
from rlrun.policies.exploration import RandomSampler
from rlrun.policies.exploration_strategy import unexploring
from rlrun.policies.privileged import stand_ins
from rlrun.policies.rl_module import RLModule
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.runner_connectors import RunnerConnectors

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

Program = Callable[[Mapping[str, Array]], dict[str, Array]]
"""A file that was read: from the inputs by name, ``[N, ...]`` each, to the outputs."""
NAME = "rlrun"
"""Name of the signature in a file: a JSON text beside TorchScript, a property of ONNX."""


class ExportedPolicy(nn.Module):
    """A policy with its connectors, from observations to the environment's actions.

    Args:
        connectors: between the environments and the policy, with their statistics.
        module: the policy's network, with its weights; copied.

    Attributes:
        inputs, outputs: name -> one row, of the shape and type of all rows; the row of
            ``state_in_<k>`` is the initial state.

    Raises:
        InputError: the policy is not made of torch modules and rlrun's own connectors.
    """

    def __init__(self, connectors: RunnerConnectors, module: RLModule) -> None:
        super().__init__()
        if connectors.history is not None:
            raise InputError(
                "connectors of env_runners.env_to_module_connector and module_to_env_connector are "
                "Python code, which no file can hold; only rlrun's own can be exported"
            )
        policy: Any = unexploring(connectors.policy)
        whole, self._space = connectors.env_spaces[0], connectors.needed_space
        self._stand_ins = map_leaves(torch.from_numpy, stand_ins(whole, self._space, 1))
        assert isinstance(connectors.observations, ObservationPipeline)
        assert isinstance(connectors.actions, ActionPipeline)
        self.observe = _Observations(connectors.observations)
        self.module = deepcopy(module).cpu().eval()
        for part in self.module.modules():  # a program must not record what it computes
            part.requires_grad_(False)
        self.choose = _MostLikely(self.module, policy)
        self.act = _Actions(connectors.actions)
        action = np.zeros(policy.sampler.shape, policy.sampler.dtype)
        states = policy.get_initial_state()
        views = TrajectoryViews(policy.view_requirements, states, policy.unread_views)
        past = [view for view in views.acting_views if not view.is_plain]
        self._memories = [_Memory(view, action, states) for view in past]
        self.inputs = {
            name: np.zeros(*row_form(leaf)) for name, _, leaf in named_leaves(self._space, "obs")
        }
        if any(memory.source == col.REWARDS for memory in self._memories):
            self.inputs["rewards"] = np.zeros((), np.float32)
        kept = [memory.initial for memory in self._memories if memory.initial is not None]
        self._num_states = len(kept)
        self.inputs |= {f"{col.STATE_IN_PREFIX}{k}": row for k, row in enumerate(kept)}
        self.outputs = {
            name: np.zeros(*row_form(leaf))
            for name, _, leaf in named_leaves(connectors.env_spaces[1], "actions")
        }
        self.outputs |= {f"{col.STATE_OUT_PREFIX}{k}": row for k, row in enumerate(kept)}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """From the inputs to the outputs, each in the order of their names."""
        given = dict(zip(self.inputs, inputs, strict=True))
        observations = nested(self._space, "obs", given)
        if self._stand_ins:
            count = inputs[0].shape[0]
            unknown = map_leaves(lambda row: row.expand(count, *row.shape[1:]), self._stand_ins)
            observations = {**observations, **unknown}
        batch = {col.OBS: self.observe(observations)}
        states = iter(inputs[len(inputs) - self._num_states :])
        pasts = []
        for memory in self._memories:
            past = None if memory.initial is None else next(states)
            pasts.append(memory.now(past, given.get("rewards")))
            batch[memory.name] = pasts[-1]
        computed = self.module.forward_inference(batch)
        chosen = self.choose(computed[col.ACTION_DIST_INPUTS])
        computed = {**computed, col.ACTIONS: chosen}
        after = [
            memory.after(past, computed)
            for memory, past in zip(self._memories, pasts, strict=True)
            if memory.initial is not None
        ]
        return (*self.act(chosen), *after)

    def signature(self) -> str:
        """Inputs and outputs as JSON: name -> shape and type of a row, and initial states."""
        described: dict[str, Any] = {
            kind: {
                name: {"shape": row.shape, "dtype": str(row.dtype)} for name, row in rows.items()
            }
            for kind, rows in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        described["initial_states"] = {
            name: row.tolist()
            for name, row in self.inputs.items()
            if name.startswith(col.STATE_IN_PREFIX)
        }
        return json.dumps(described)

    def _examples(self) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.stack([row, row, row])) for row in self.inputs.values())

    def write_torchscript(self, path: str | os.PathLike[str]) -> None:
        """Write the module as TorchScript, which ``torch.jit.load`` reads, in C++ too."""
        with torch.no_grad(), warnings.catch_warnings():
            # That TorchScript has a successor, and that sizes may be fixed: the caller checks it.
            warnings.simplefilter("ignore")
            traced: Any = torch.jit.trace(self, self._examples(), check_trace=False)
            written = traced.save_to_buffer(_extra_files={f"{NAME}.json": self.signature()})
        with open(path, "wb") as file:  # torch refuses some names of files
            file.write(written)

    def write_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the module in the Open Neural Network Exchange format."""
        import onnx

        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
        batch = torch.export.Dim("batch")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about its own parts
            program: Any = torch.onnx.export(
                self,
                self._examples(),
                dynamo=True,
                dynamic_shapes=(tuple({0: batch} for _ in self.inputs),),
                input_names=list(self.inputs),
                output_names=list(self.outputs),
                verbose=False,
            )
        model = program.model_proto
        onnx.helper.set_model_props(model, {NAME: self.signature()})
        onnx.save(model, os.fspath(path))


def load_torchscript(path: str | os.PathLike[str]) -> Program:
    """The program that `ExportedPolicy.write_torchscript` wrote."""
    signature = {f"{NAME}.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: Any = torch.jit.load(os.fspath(path), _extra_files=signature)
    names = json.loads(signature[f"{NAME}.json"])

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(inputs[name]) for name in names["inputs"]))
        return {name: out.numpy() for name, out in zip(names["outputs"], outputs, strict=True)}

    return run


def load_onnx(path: str | os.PathLike[str]) -> Program:
    """The program that `ExportedPolicy.write_onnx` wrote."""
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


FORMATS = {
    "onnx": (ExportedPolicy.write_onnx, load_onnx),
    "torchscript": (ExportedPolicy.write_torchscript, load_torchscript),
}
"""How a file of each format is written and read."""


def export_policy(algorithm: Algorithm, policy_id: str) -> ExportedPolicy:
    """A policy as it acts now, for other programs.

    Raises:
        InputError: it cannot be exported.
    """
    connectors = algorithm.evaluator.connectors(policy_id, num_envs=0)
    policy, learners = unexploring(connectors.policy), algorithm.policies.learners
    if policy_id in learners and isinstance(policy, SamplingPolicy):
        return ExportedPolicy(connectors, learners[policy_id].module)
    kind = type(policy)
    acts = kind.compute_actions, kind.compute_actions_from_input_dict
    if not isinstance(policy, TorchPolicy) or acts != (
        TorchPolicy.compute_actions,
        TorchPolicy.compute_actions_from_input_dict,
    ):
        raise InputError(
            f"policy {policy_id}: {kind.__name__} computes actions in its own Python code; only "
            "policies whose actions a torch module computes can be exported"
        )
    return ExportedPolicy(connectors, policy.module)


def named_leaves(space: gym.Space[Any], name: str) -> Iterator[tuple[str, Keys, gym.Space[Any]]]:
    """The leaves of a space, Dict entries in sorted key order: name, path, space."""
    for path, leaf in leaf_spaces(space):
        yield ".".join([name, *map(str, path)]), path, leaf


def nested(space: gym.Space[Any], name: str, leaves: Mapping[str, Any]) -> Any:
    """Batches of the leaves, by the names that `named_leaves` gives, as the space nests them."""
    return map_space(lambda path, _: leaves[".".join([name, *map(str, path)])], space)


class _Observations(nn.Module):
    """What an `ObservationPipeline` does, with the statistics that its filter has now."""

    def __init__(self, pipeline: ObservationPipeline) -> None:
        super().__init__()
        self._splits, self._filtered = pipeline.splits, pipeline.filtered
        self._preprocess = None
        if pipeline.preprocessor is not None:
            self._preprocess = _Preprocess(pipeline.preprocessor)
        if pipeline.filter is None:
            self._filtered = ()
            return
        filtered, self._clip = pipeline.filter, pipeline.filter.clip
        columns = ... if filtered.columns is None else filtered.columns[1:]
        shapes = {path: leaf.shape or () for path, leaf in leaf_spaces(pipeline.output_space)}
        start = 0
        for i, path in enumerate(self._filtered):
            shape = shapes[path]
            mean, scale, normalized = np.zeros(shape), np.ones(shape), np.zeros(shape, np.bool_)
            end = start + mean.size
            own = ... if len(self._filtered) == 1 else slice(start, end)
            mean[columns] = filtered.mean[own].reshape(mean[columns].shape)
            scale[columns] = filtered.scale[own].reshape(mean[columns].shape)
            normalized[columns] = True
            start = end
            for name, array in (("mean", mean), ("scale", scale), ("normalized", normalized)):
                self.register_buffer(f"{name}_{i}", torch.from_numpy(array))

    def forward(self, obs: Any) -> Any:
        if self._splits:
            seen = self._preprocessed(without_mask(obs))
            obs = {ACTION_MASK: obs[ACTION_MASK], OBSERVATION: seen}
        else:
            obs = self._preprocessed(obs)
        return self._normalized(obs) if self._filtered else obs

    def _preprocessed(self, obs: Any) -> Any:
        return obs if self._preprocess is None else self._preprocess(obs)

    def _normalized(self, obs: Any, path: Keys = ()) -> Any:
        if isinstance(obs, dict):
            return {key: self._normalized(part, (*path, key)) for key, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(self._normalized(part, (*path, i)) for i, part in enumerate(obs))
        if path not in self._filtered:
            return obs
        i = self._filtered.index(path)
        mean, scale, normalized = (
            self.get_buffer(f"{name}_{i}") for name in ("mean", "scale", "normalized")
        )
        normal = ((obs.to(torch.float64) - mean) * scale).clamp(-self._clip, self._clip)
        return torch.where(normalized, normal.to(obs.dtype), obs)


class _Preprocess(nn.Module):
    """What a `Preprocessor` does."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        self._leaves = preprocessor.leaves
        for i, leaf in enumerate(self._leaves):
            first = torch.from_numpy(leaf.first_columns - leaf.start)
            self.register_buffer(f"first_{i}", first)
            self.register_buffer(f"columns_{i}", torch.arange(leaf.width))

    def forward(self, obs: Any) -> Tensor:
        if not self._leaves:
            return obs.to(torch.float32)
        parts = []
        for i, leaf in enumerate(self._leaves):
            part = obs
            for key in leaf.path:
                part = part[key]
            if not leaf.categories:
                parts.append(part.reshape(-1, leaf.width).to(torch.float32))
                continue
            hot = part.reshape(-1, leaf.categories).long() + self.get_buffer(f"first_{i}")
            table = hot[:, :, None] == self.get_buffer(f"columns_{i}")
            parts.append(table.any(1).to(torch.float32))
        return torch.cat(parts, dim=1)


class _MostLikely(nn.Module):
    """From distribution inputs ``[N, P]`` to the most likely actions, as the policy takes them."""

    def __init__(self, module: RLModule, policy: SamplingPolicy) -> None:
        super().__init__()
        layout = action_layout(policy.action_space)
        sampler = policy.sampler
        if isinstance(sampler, RandomSampler):
            sampler = sampler.sampler
        self._leaves, self._nested = layout.leaves, layout.nested
        self._squashed = isinstance(sampler, SquashedGaussianSampler)
        self._own = isinstance(sampler, TorchSampler)
        self._distribution = module.distribution
        self._dtype = torch.from_numpy(np.zeros(1, sampler.dtype)).dtype

    def forward(self, inputs: Tensor) -> Tensor:
        if self._own:
            return self._distribution.mode(inputs).to(self._dtype)
        parts = [self._leaf(leaf, inputs[:, leaf.inputs]) for leaf in self._leaves]
        if not self._nested:
            return parts[0]
        columns = [part[:, None] if part.dim() == 1 else part for part in parts]
        return torch.cat([part.to(torch.float32) for part in columns], dim=1)

    def _leaf(self, leaf: ActionLeaf, inputs: Tensor) -> Tensor:
        if leaf.kind == "categorical":
            return inputs.argmax(-1)
        if leaf.kind == "multi_categorical":
            return torch.stack([p.argmax(-1) for p in inputs.split(leaf.categories, -1)], -1)
        if leaf.kind == "bernoulli":
            return (inputs > 0.0).to(torch.float32)
        mean = inputs[:, : leaf.num_columns]
        return mean.tanh() if self._squashed else mean


class _Actions(nn.Module):
    """What an `ActionPipeline` does; a tensor for each leaf."""

    def __init__(self, pipeline: ActionPipeline) -> None:
        super().__init__()
        self._identity, self._leaves = pipeline.identity, pipeline.leaves
        for i, leaf in enumerate(self._leaves):
            low, high = leaf.bounds or (None, None)
            constants = {"scale": leaf.scale, "offset": leaf.offset, "low": low, "high": high}
            for name, array in constants.items():
                tensor = None if array is None else torch.from_numpy(np.array(array))
                self.register_buffer(f"{name}_{i}", tensor)

    def forward(self, actions: Tensor) -> tuple[Tensor, ...]:
        if self._identity:
            return (actions,)
        if len(self._leaves) == 1 and actions.dim() == 1:
            return (self._leaf(0, actions),)
        columns = [actions[:, leaf.columns] for leaf in self._leaves]
        return tuple(self._leaf(i, part) for i, part in enumerate(columns))

    def _leaf(self, i: int, columns: Tensor) -> Tensor:
        leaf = self._leaves[i]
        dtype = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype
        actions = columns.reshape(-1, *leaf.shape).to(dtype)
        scale, offset, low, high = (
            self._buffers[f"{name}_{i}"] for name in ("scale", "offset", "low", "high")
        )
        if scale is not None:
            actions = actions * scale
        if offset is not None:
            actions = actions + offset
        if low is not None and high is not None:
            actions = actions.maximum(low).minimum(high)
        return actions


class _Memory:
    """A view of the steps before: a state that goes in and comes out, or the rewards as they are.

    Attributes:
        initial: the state in an episode's first step; None where there is none.

    Raises:
        InputError: the view is not of the last steps of states, actions or rewards.
    """

    def __init__(self, view: View, action: Array, states: Sequence[Array]) -> None:
        self.name, self.source, self._time_axis = view.name, view.source, view.time_axis
        steps = [int(step) for step in view.steps]
        known = (col.ACTIONS, col.REWARDS)
        is_state = view.source.startswith(col.STATE_OUT_PREFIX)
        if steps != list(range(-len(steps), 0)) or not (is_state or view.source in known):
            raise InputError(
                f"the network's view {view.name!r} is of {view.source!r}, steps {steps}; only "
                "views of states, actions and rewards of the last steps can be exported"
            )
        rows = source_rows(view.source, len(steps), None, action, states)
        self.initial: Array | None = rows if view.time_axis else rows[0]
        if view.source == col.REWARDS and not view.time_axis:
            self.initial = None

    def now(self, past: Tensor | None, rewards: Tensor | None) -> Tensor:
        """What the network sees, given the state."""
        if self.source == col.REWARDS:
            assert rewards is not None
            return rewards if past is None else torch.cat((past[:, 1:], rewards[:, None]), 1)
        assert past is not None
        return past

    def after(self, seen: Tensor, computed: Mapping[str, Tensor]) -> Tensor:
        """The next state, given what the network has seen and computed."""
        if self.source == col.REWARDS:
            return seen
        new = computed[self.source]
        return torch.cat((seen[:, 1:], new[:, None]), 1) if self._time_axis else new

"""Settings that need more memory than this machine has, by a lower bound of their bytes.

Owns: the memory of the machine, and the least bytes of networks, train batches and buffers. Must
not know: environments; with the size of their observations a run checks its buffers (`check_fits`).
"""

import logging
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path as FilePath

from rlrun.config.policies import addressed_settings
from rlrun.config.problems import ConfigError, Finding, Origin, Path, Problem
from rlrun.config.registry import algorithm_class
from rlrun.config.schema import ExperimentConfig, ModelConfig

_log = logging.getLogger(__name__)

TRANSITION_BYTES = 48
"""Memory of a replayed transition, besides its observation and action."""
_ROW_BYTES = 16  # of a train batch: action, reward and flags
_ENV_BYTES = 1000
_WEIGHT_BYTES = 16  # the weight, its gradient and Adam's two moments in single precision


def check_memory(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings that need more than this machine's memory in any environment."""
    for prefix, settings in addressed_settings(experiment):
        num_atoms = getattr(settings.training, "num_atoms", 1)
        for key, num_weights in _least_weights(settings.model, num_atoms):
            path = tuple(part for part in f"{prefix}{key}".split(".") if part)
            yield from _too_much(path, num_weights * _WEIGHT_BYTES, f"{num_weights:,} weights")
    runners, evaluation = experiment.env_runners, experiment.evaluation
    sizes = [
        (("training", "train_batch_size"), experiment.training.train_batch_size, _ROW_BYTES),
        (("env_runners", "num_envs_per_env_runner"), runners.num_envs_per_env_runner, _ENV_BYTES),
        (("evaluation", "num_envs"), min(evaluation.num_envs, evaluation.episodes), _ENV_BYTES),
    ]
    if "replay" in getattr(algorithm_class(experiment.algorithm), "optional_sections", ()):
        sizes.append((("replay", "capacity"), experiment.replay.capacity, TRANSITION_BYTES))
    for path, number, each in sizes:
        yield from _too_much(path, number * each, f"{number:,} of them")


def check_fits(key: str, num_bytes: int, what: str) -> None:
    """Raise ConfigError if `what`, which the setting `key` needs, exceeds the memory.

    Warns if it takes more than half of the memory.
    """
    for finding in _too_much((key,), num_bytes, what):
        raise ConfigError([Problem(Origin("this machine"), key, finding.message)])
    level = logging.WARNING if 2 * num_bytes > (there := memory_bytes()) else logging.INFO
    needed, whole = num_bytes / 1e9, there / 1e9
    _log.log(level, "%s: %s take at least %.1f of %.1f GB of memory", key, what, needed, whole)


def _too_much(path: Path, num_bytes: int, what: str) -> Iterator[Finding]:
    if num_bytes > (there := memory_bytes()):
        needed = f"{what} take at least {num_bytes / 1e9:,.1f} GB"
        yield Finding(path, f"{needed}, but this machine has {there / 1e9:,.1f} GB of memory")


def memory_bytes() -> int:
    """The memory of this machine, or the limit of its container if that is lower."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = FilePath("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return there
    return min(there, int(limit)) if limit.isdecimal() else there


def _least_weights(model: ModelConfig, num_atoms: int) -> Iterator[tuple[str, int]]:
    """The least number of weights that each setting of a default network implies."""
    if model.use is not None:
        return
    layers = {"hidden": model.hidden, "head_hidden": model.head_hidden}
    layers["value_hidden"] = model.value_hidden or ()
    for key, widths in layers.items():
        yield f"model.{key}", sum(below * above for below, above in pairwise((1, *widths)))
    last = (1, *model.hidden)[-1]
    yield "training.num_atoms", last * num_atoms
    if model.conv:
        channels = (1, *(layer[0] for layer in model.conv))
        kernels = (layer[1] ** 2 for layer in model.conv)
        sizes = zip(pairwise(channels), kernels, strict=True)
        yield "model.conv", sum(below * above * kernel for (below, above), kernel in sizes)
        yield "model.conv_head", channels[-1] * model.conv_head
    if model.use_lstm or model.use_gru:
        yield "model.lstm_cell_size", 3 * model.lstm_cell_size * (model.lstm_cell_size + last)
    if model.use_attention:
        heads = model.attention_num_heads * model.attention_head_dim
        inner = 3 * heads + model.attention_position_wise_mlp_dim
        unit = model.attention_dim * (inner + model.attention_memory)
        yield "model.attention_dim", model.attention_num_transformer_units * unit

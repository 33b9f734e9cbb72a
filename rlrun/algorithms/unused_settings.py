"""Settings without effect in the spaces of an environment, or on this machine.

Owns which settings need images, hidden layers, continuous actions or a GPU. What can be told before
an algorithm is built is in `config/checks.py`. Must not know how networks are built.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from rlrun.algorithms.policies import Policies
from rlrun.config.policies import PolicySettings
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import ExperimentConfig
from rlrun.config.section import changed_settings
from rlrun.data.nested import leaf_spaces, space_without_mask
from rlrun.policies.layers import has_image


def unused_settings(config: ExperimentConfig, policies: Policies) -> Iterator[tuple[str, str]]:
    """Settings that differ from their defaults and have no effect on any policy.

    Yields:
        A setting's address and the reason.
    """
    here = not config.learners.num_learners
    devices = {learner.device.type for learner in policies.learners.values()}
    if config.learners.cuda_graphs and here and devices == {"cpu"}:
        yield "learners.cuda_graphs", "there is no GPU"
    spaces = {policy_id: policies.module_spaces(policy_id) for policy_id in policies}
    if not any(_is_continuous(action_space) for _, action_space in spaces.values()):
        for key in changed_settings(config.connectors, ("normalize_actions", "clip_actions")):
            yield f"connectors.{key}", "no action is continuous"
    unused, used = dict[str, str](), set[str]()
    for policy_id, settings in policies.items():
        reasons = _reasons(config, settings, *spaces[policy_id])
        for key in changed_settings(settings.model, type(settings.model).model_fields):
            if key in reasons:
                unused[key] = reasons[key]
            else:
                used.add(key)
    yield from ((f"model.{key}", unused[key]) for key in unused if key not in used)


def _reasons(
    config: ExperimentConfig,
    settings: PolicySettings,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
) -> dict[str, str]:
    """Settings of the default networks without effect in these spaces, each with the reason."""
    model, reasons = settings.model, dict[str, str]()
    if model.use is not None or settings.use is not None or config.algorithm not in ALGORITHMS:
        return reasons  # code of the user's own may read all settings
    if config.algorithm == "DQN":
        reasons["init"] = "action values begin with torch's own initial weights"
    space = space_without_mask(observation_space)
    is_box = isinstance(space, gym.spaces.Box)
    if not has_image(space) and not (is_box and model.conv is not None):
        reasons |= dict.fromkeys(("conv", "conv_head", "conv_dtype"), "there are no images")
    elif is_box and config.algorithm != "SAC":
        reasons["hidden"] = "the hidden layers after convolutions are those of model.head_hidden"
    if not _is_continuous(action_space):
        of_noise = "log_std_init", "free_log_std", "use_sde", "sde_sample_freq"
        reasons |= dict.fromkeys(of_noise, "no action is continuous")
    return reasons


def _is_continuous(action_space: gym.Space[Any]) -> bool:
    boxes = (leaf for _, leaf in leaf_spaces(action_space) if isinstance(leaf, gym.spaces.Box))
    return any(box.dtype.kind == "f" for box in boxes)

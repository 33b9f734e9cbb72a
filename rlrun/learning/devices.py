"""Which device a learner runs on."""

from __future__ import annotations

import torch

from rlrun.config.problems import ConfigError, Origin, Problem


def resolve_device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1`` as a device that is there.

    Raises:
        ConfigError: naming what was found, if the device is not there.
    """
    found = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if found else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= found:
        there = f"{found} CUDA device{'s' if found != 1 else ''}" if found else "no CUDA device"
        message = f"{name!r} asked for, but torch sees {there}; use auto or cpu"
        raise ConfigError([Problem(Origin("this machine"), "learners.device", message)])
    return device

"""What a learner computes on: its device, its threads, and the memory that they allocate.

Must not know what is computed. What it sets is of the whole process.
"""

import ctypes
import sys

import numpy as np
import torch

from rlrun.config.problems import ConfigError, Origin, Problem

# In numpy's wheels since 2.0, in earlier ones, and in what a system or conda brings.
OPENBLAS_THREADS = tuple(
    f"{name}openblas_set_num_threads{suffix}"
    for name, suffix in (("scipy_", "64_"), ("", "64_"), ("", ""))
)


def resolve_device(name: str) -> torch.device:
    """The device of this name on this machine: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        ConfigError: the device is missing.
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


def set_num_threads(number: int) -> None:
    """Set the number of threads of torch, and of numpy if OpenBLAS computes its matrix products.

    By default these split even products of small layers among all cores, and wait for the last.
    """
    torch.set_num_threads(number)
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    for name in OPENBLAS_THREADS:
        if hasattr(library, name):
            getattr(library, name)(number)
            break


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory for later allocations.

    By default it returns what each minibatch frees to the system, 100 MB of images or 5 MB of SAC.
    The page faults of the next one then take up to a fifth of an update's time, or a quarter.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # what is larger is mapped, and given back

"""An environment that works for a while, and then does not come back, or ends or changes its
process.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import gymnasium as gym
import numpy as np


def _loop():
    while True:
        pass


def _raise(error):
    raise error


ENDS = {
    "sleep": lambda: time.sleep(600),
    "loop": _loop,
    "keep lock": lambda: ctypes.PyDLL(None).sleep(600),
    "sys.exit": lambda: sys.exit(3),
    "raises": lambda: 1 / 0,
    "GeneratorExit": lambda: _raise(GeneratorExit),
    "os._exit": lambda: os._exit(7),
    "os._exit(0)": lambda: os._exit(0),
    "chdir": lambda: os.chdir("/"),
    "fork": os.fork,
    "fork, and the child exits": lambda: os.fork() or sys.exit(3),
    "thread": lambda: threading.Thread(target=time.sleep, args=(600,)).start(),
    "signal": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
}


class Hanging(gym.Env):
    """Episodes of 5 steps until call ``at`` of the method ``where``, which ends as ``how`` says."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how="sleep", where="step", at=8):
        self._end, self._where, self._left = ENDS[how], where, at
        if where == "constructor":
            self._end()

    def _count(self, where):
        if where == self._where:
            self._left -= 1
            if self._left == 0:
                self._end()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        self._count("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        self._count("step")
        return np.zeros(2, np.float32), 1.0, self._steps == 5, False, {}

    def close(self):
        self._count("close")

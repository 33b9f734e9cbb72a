"""Environments that write down each transition, and the log read back as tensors.

A walk of a few numbers, or a small image of them; episodes terminate and are truncated at random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from rlrun import MultiAgentEnv

Rows = dict[str, Tensor]
"""Columns of transitions by name, ``[N, ...]``."""

ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(3),
    "categories": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(2),
    "unbounded": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "bounded": gym.spaces.Box(-8.0, 8.0, (2,), np.float32),
}
COLUMNS = ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs")


class LoggedEnv(gym.Env[Any, Any]):
    """See the module.

    Args:
        log: folder of the log, which gets a file for each sub-environment.
        image: observe 3 x 3 pixels of the walk.
    """

    def __init__(
        self, log: str, actions: str = "discrete", image: bool = False, context: Any = None
    ) -> None:
        self.action_space, self._image = ACTIONS[actions], image
        size = (6, 6, 1) if image else (3,)
        low, high, dtype = (0, 255, np.uint8) if image else (-np.inf, np.inf, np.float32)
        self.observation_space = gym.spaces.Box(low, high, size, dtype)  # type: ignore[type-var]
        context = context or {}
        places = (getattr(context, name, 0) for name in ("worker_index", "vector_index"))
        self.path = Path(log) / ("-".join(f"{place:02}" for place in places) + ".jsonl")
        self._at, self._steps = np.zeros(3), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._steps = self.np_random.normal(size=3), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self.write(*self.advance(action))

    def advance(self, action: Any) -> tuple[Any, ...]:
        """A transition; episodes last 7 steps at most."""
        before = self._observation()
        push = np.resize(np.asarray(action, dtype=np.float64), 3)
        self._at = 0.8 * self._at + 0.3 * push + self.np_random.normal(scale=0.5, size=3)
        reward = float(np.float32(self._at.sum() - 0.5 * push[0]))
        self._steps += 1
        terminated, truncated = bool(self.np_random.random() < 0.12), self._steps == 7
        return before, np.asarray(action), reward, terminated, truncated, self._observation()

    def write(self, *row: Any) -> Any:
        """Write a transition down; what `step` returns."""
        with self.path.open("a") as file:
            json.dump([np.asarray(part).tolist() for part in row], file)
            file.write("\n")
        _, _, reward, terminated, truncated, after = row
        return after, reward, terminated, truncated, {}

    def _observation(self) -> Any:
        if not self._image:
            return (2.0 * self._at + 1.0).astype(np.float32)
        pixels = np.outer(np.tile(self._at, 2), np.repeat(self._at, 2))
        return (128 + 40 * pixels).clip(0, 255).astype(np.uint8)[:, :, None]


def logged_vector(log: str, num_envs: int, mode: str) -> SyncVectorEnv:
    """A vector environment of gymnasium's with this autoreset mode."""

    def make(index: int) -> Any:
        def sub_environment() -> LoggedEnv:
            env = LoggedEnv(log)
            env.path = env.path.with_name(f"00-{index:02}.jsonl")
            return env

        return sub_environment

    return SyncVectorEnv([make(i) for i in range(num_envs)], autoreset_mode=mode)


class LoggedAgents(MultiAgentEnv):
    """Two agents, ``a`` and ``b``, each on a walk of its own; both stop when one of them does."""

    possible_agents = ("a", "b")

    def __init__(self, log: str, context: Any, **kwargs: Any) -> None:
        self._walks = {agent: LoggedEnv(log, context=context, **kwargs) for agent in "ab"}
        for agent, walk in self._walks.items():
            (Path(log) / agent).mkdir(exist_ok=True)
            walk.path = walk.path.parent / agent / walk.path.name
        self.observation_spaces = {a: walk.observation_space for a, walk in self._walks.items()}
        self.action_spaces = {a: walk.action_space for a, walk in self._walks.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        rng = np.random.default_rng(seed)
        seeds = {agent: int(rng.integers(2**31)) for agent in self._walks}
        return {a: walk.reset(seed=seeds[a])[0] for a, walk in self._walks.items()}, {}

    def step(self, actions: Any) -> Any:
        rows = {agent: self._walks[agent].advance(action) for agent, action in actions.items()}
        ends = [any(row[i] for row in rows.values()) for i in (3, 4)]
        parts = {a: self._walks[a].write(*row[:3], *ends, row[5]) for a, row in rows.items()}
        named = [{agent: part[i] for agent, part in parts.items()} for i in range(5)]
        for flags, end in zip(named[2:4], ends, strict=True):
            flags["__all__"] = end
        return tuple(named)


def read_log(folder: Path, window: int = 2) -> list[Rows]:
    """The transitions of each sub-environment in their order.

    Besides what was written: ``ends`` of episodes, ``t`` within them, and the ``window`` actions
    and rewards before each step, zeros before the episode.
    """
    streams = []
    for path in sorted(folder.glob("*.jsonl")):
        table = zip(*map(json.loads, path.read_text().splitlines()), strict=True)
        rows = {name: torch.tensor(column) for name, column in zip(COLUMNS, table, strict=True)}
        kept = {name for name, column in rows.items() if name == "actions" and column.dim() == 1}
        rows = {k: v if k in kept or v.dtype == torch.bool else v.double() for k, v in rows.items()}
        rows["ends"] = rows["terminateds"] | rows["truncateds"]
        t, begin = torch.zeros(len(rows["ends"]), dtype=torch.int64), 0
        before = {name: torch.zeros_like(rows[name])[:1] for name in ("actions", "rewards")}
        windows: dict[str, list[Tensor]] = {name: [] for name in before}
        for i, end in enumerate(rows["ends"].tolist()):
            t[i] = i - begin
            for name, zero in before.items():
                past = torch.cat(
                    (zero.repeat(window, *[1] * (zero.dim() - 1)), rows[name][begin:i])
                )
                windows[name].append(past[-window:])
            begin = i + 1 if end else begin
        past_rows = {f"prev_{name}": torch.stack(past) for name, past in windows.items()}
        streams.append({**rows, "t": t, **past_rows})
    return streams


def cut(streams: list[Rows], begin: int, end: int) -> list[Rows]:
    """These steps of each sub-environment."""
    return [{name: column[begin:end] for name, column in rows.items()} for rows in streams]


def join(chunks: list[Rows]) -> Rows:
    """One chunk after the other."""
    return {name: torch.cat([rows[name] for rows in chunks]) for name in chunks[0]}

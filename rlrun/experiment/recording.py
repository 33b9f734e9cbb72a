"""Recorders of a rollout: transitions as npz, videos, a window, and a limit on its length.

Owns the recorders: callables that receive every vector step and return True to end the rollout.
They must not know which policy acts.

    B  sub-environments, each with one episode at a time
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.problems import InputError
from rlrun.envs.recorded_step import AgentTransition, RecordedStep

_DEFAULT_FRAMES_PER_S = 30
_INFO = "info"


class StepLimit:
    """Ends the rollout after a number of env steps, over all sub-environments.

    It is the last recorder, so that the others receive the last step, too.

    Raises:
        ValueError: the number is below 1.
    """

    def __init__(self, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"a rollout takes at least 1 env step, not {steps}")
        self._left = steps

    def __call__(self, step: RecordedStep) -> bool:
        """Count the steps of episodes that belong to the rollout."""
        self._left -= sum(episode is not None for episode in step.episodes)
        return self.reached

    @property
    def reached(self) -> bool:
        """Whether no steps are left."""
        return self._left <= 0


class TransitionRecorder:
    """Collects ``obs, action, next_obs, reward, terminated, truncated`` and the episode's number.

    Observations and actions are the environment's, before preprocessing. Each leaf of a nested
    space is a column, ``obs/camera``. Rows are ordered by episode. Numbers, arrays and text in the
    infos of steps are columns, ``info/x``: NaN, or empty, in rows without one. What has another
    shape in some rows is left out.

    Each of several agents has its own columns, ``agent_0/obs``, with a row for each action;
    ``agent_0/t`` is the env step of the episode at which it acted.
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}  # by prefix of their columns

    def __call__(self, step: RecordedStep) -> None:
        """Copy the rows of episodes that belong to the rollout."""
        for dropped in step.dropped.values():
            self._keep(partial(ne, dropped))
        if step.obs is None:
            for transition in step.agents:
                self._add_of_agent(transition)
            return
        columns = {
            **_leaves("obs", step.obs),
            **_leaves("action", step.actions),
            **_leaves("next_obs", step.next_obs),
            "reward": step.rewards,
            "terminated": step.terminateds,
            "truncated": step.truncateds,
        }
        for env_index, episode in enumerate(step.episodes):
            if episode is not None:
                row = {name: column[env_index] for name, column in columns.items()}
                info = (step.infos or {}).get(env_index, {})
                self._rows.setdefault("", _Rows()).add(episode, row, info)

    def _add_of_agent(self, transition: AgentTransition) -> None:
        row = {
            **_leaves("obs", transition.obs, batched=False),
            **_leaves("action", transition.action, batched=False),
            **_leaves("next_obs", transition.next_obs, batched=False),
            "reward": transition.reward,
            "terminated": transition.terminated,
            "truncated": transition.truncated,
            "t": transition.step,
        }
        rows = self._rows.setdefault(f"{transition.agent}/", _Rows())
        rows.add(transition.episode, row, transition.info)

    def forget(self, first: int) -> None:
        """Drop the rows of this episode and of later ones."""
        self._keep(lambda number: number < first)

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        for rows in self._rows.values():
            rows.episodes = {k: own for k, own in rows.episodes.items() if wanted(k)}
        self._rows = {prefix: rows for prefix, rows in self._rows.items() if rows.episodes}

    def columns(self) -> dict[str, np.ndarray]:
        """All rows, ``[N, ...]`` a column."""
        return {
            f"{prefix}{name}": column
            for prefix, rows in self._rows.items()
            for name, column in rows.columns().items()
        }

    def save(self, path: Path) -> None:
        """Write an npz file that ``np.load`` reads without pickle."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez_compressed(file, **self.columns())  # type: ignore[arg-type]


class _Rows:
    """Transitions by episode, each with the same columns, and with any infos."""

    def __init__(self) -> None:
        self.episodes: dict[int, dict[str, list[Any]]] = {}

    def add(self, episode: int, row: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Copy one row, and its info."""
        rows = self.episodes.setdefault(episode, defaultdict(list))
        for name, value in row.items():
            rows[name].append(np.array(value))
        rows[_INFO].append(_info_leaves(info))

    def columns(self) -> dict[str, np.ndarray]:
        """All rows, ``[N, ...]`` a column, and ``episode``."""
        numbers = sorted(self.episodes)
        episodes = [self.episodes[k] for k in numbers]
        rows = {name: [row for each in episodes for row in each[name]] for name in episodes[0]}
        infos = _info_columns(rows.pop(_INFO))
        columns = {name: np.stack(values) for name, values in rows.items()}
        lengths = [len(each["reward"]) for each in episodes]
        episode = np.repeat(np.array(numbers, dtype=np.int64), lengths)
        return {**columns, "episode": episode, **infos}


def _info_leaves(info: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Address -> copy of each number, array and text in an info."""
    found: dict[str, np.ndarray] = {}
    for key, value in info.items():
        with suppress(ValueError):  # of lists whose items differ in length
            found |= _leaves(f"{_INFO}/{key}", value, batched=False)
    return {name: leaf.copy() for name, leaf in found.items() if leaf.dtype.kind in "biufU"}


def _info_columns(infos: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A column ``[N, ...]`` for each address whose values have one shape."""
    columns = {}
    for name in dict.fromkeys(name for info in infos for name in info):
        values = [info[name] for info in infos if name in info]
        if len({(value.shape, value.dtype.kind == "U") for value in values}) == 1:
            missing = np.full(values[0].shape, "" if values[0].dtype.kind == "U" else np.nan)
            columns[name] = np.stack([info.get(name, missing) for info in infos])
    return columns


class VideoRecorder:
    """One mp4 file an episode, from the frames of sub-environment 0."""

    def __init__(self, directory: Path, envs: Any) -> None:
        try:
            from moviepy import ImageSequenceClip
        except ImportError:
            raise InputError('--video: not installed: pip install "rlrun[video]"') from None
        self._clip_class = ImageSequenceClip
        self._directory, self._envs = directory, envs
        self._frames: list[np.ndarray] = []
        self._written: list[Path] = []

    def __call__(self, step: RecordedStep) -> None:
        """Take a frame; write the video if the episode has ended."""
        if 0 in step.dropped:
            self._frames.clear()
        episode = step.episodes[0]
        if episode is None:
            return
        frame = rendered(self._envs, "--video")[0]
        if frame is None:
            raise InputError("--video: the environment renders no rgb_array frames")
        self._frames.append(np.asarray(frame))
        if step.terminateds[0] or step.truncateds[0]:
            self._write(episode)

    def close(self) -> list[Path]:
        """Write the video of an unfinished episode; returns all files."""
        if self._frames:
            self._write(len(self._written))
        return self._written

    def _write(self, episode: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"episode-{episode:04d}.mp4"
        clip = self._clip_class(self._frames, fps=_frames_per_s(self._envs))
        clip.write_videofile(str(path), logger=None, audio=False)
        clip.close()
        self._frames = []
        self._written.append(path)


def rendered(envs: Any, option: str) -> Any:
    """What `render()` of the environments returns.

    Raises:
        InputError: they have no such method; the message begins with the option that needs it.
    """
    try:
        return envs.render()
    except NotImplementedError:
        raise InputError(f"{option}: the environment has no method render()") from None


def _frames_per_s(envs: Any) -> float:
    metadata = getattr(next(iter(getattr(envs, "envs", [envs]))), "metadata", None) or {}
    return float(metadata.get("render_fps") or _DEFAULT_FRAMES_PER_S)


def _leaves(name: str, value: Any, *, batched: bool = True) -> dict[str, Any]:
    """Address -> array for each leaf of a value of any space; ``[B, ...]`` if it is batched."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, tuple) and not (batched and all(np.isscalar(item) for item in value)):
        items = enumerate(value)
    else:
        return {name: np.asarray(value)}
    return {
        address: leaf
        for key, item in items
        for address, leaf in _leaves(f"{name}/{key}", item, batched=batched).items()
    }

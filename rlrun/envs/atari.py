"""DeepMind's preprocessing of Atari games (Mnih et al. 2015): gymnasium's wrappers and two more.

Owns the two wrappers that gymnasium lacks, and the order of all of them. Reward clipping is a
connector, so that the reported returns are the game's own.

    no-ops at reset (up to 30), every 4th frame as the maximum of two, 84 x 84 grey    gymnasium
    a lost life ends an episode for the learner, in training only                      EpisodicLife
    FIRE after a reset where the game waits for it                                     FireReset
    the last 4 frames, [4, 84, 84] uint8, oldest first                                 gymnasium
"""

from __future__ import annotations

from typing import Any

import gymnasium

_LEGACY_SUFFIXES = ("NoFrameskip-v0", "NoFrameskip-v4", "Deterministic-v0", "Deterministic-v4")
_FIRE = 1


def is_atari_id(use: str) -> bool:
    """Whether ``use`` is an id of ale-py; registers ale-py's ids if so.

    Raises:
        ModuleNotFoundError: it is such an id, and the extra is not installed.
    """
    if not (use.startswith("ALE/") or use.endswith(_LEGACY_SUFFIXES)):
        return False
    try:
        import ale_py
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f'{use} needs the extra "atari": pip install "rlrun[atari]"'
        ) from None
    if use not in gymnasium.registry:
        gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each environment
    return True


def deepmind(env: gymnasium.Env[Any, Any], *, training: bool) -> gymnasium.Env[Any, Any]:
    """Wrap a bare game (frame skip 1); a lost life ends an episode only in ``training``."""
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    # The preprocessing reads two of four frames from the emulator itself. The game's own
    # observations, decoded in colours, are never used, and take a quarter of the time.
    env.unwrapped._get_obs = lambda: None  # type: ignore[attr-defined]
    wrapped: gymnasium.Env[Any, Any] = AtariPreprocessing(env, noop_max=30, frame_skip=4)
    if training:
        wrapped = EpisodicLife(wrapped)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    if len(meanings) > 2 and meanings[_FIRE] == "FIRE":
        wrapped = FireReset(wrapped)
    return FrameStackObservation(wrapped, stack_size=4)


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Losing a life terminates the learner's episode; the game, and its score, go on.

    The step that loses a life has ``life_lost`` and ``episode_continues`` in its info: episode
    metrics must not end there. The next reset continues the same game, from the frame in which the
    life was lost (it makes no hidden step, and ignores its seed); only after the last life, or a
    truncation, does a reset start a new game.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._last: tuple[Any, dict[str, Any]] | None = None  # set: the game goes on

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start the next life, or the next game if the last life is lost."""
        if self._last is not None:
            observation, info = self._last
            self._last = None
            return observation, info
        result = self.env.reset(seed=seed, options=options)
        self._lives = self._lives_left()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the game, terminated also where a life was lost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._lives_left()
        lost, self._lives = 0 < lives < self._lives, lives
        if not lost or terminated or truncated:
            return observation, reward, terminated, truncated, info
        self._last = (observation, info)
        info = {**info, "life_lost": True, "episode_continues": True}
        return observation, reward, True, False, info

    def _lives_left(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Press FIRE, then the next action, after each reset: some games wait for it forever."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset, press FIRE and the next action, and reset again if that ended the game."""
        observation, info = self.env.reset(seed=seed, options=options)
        for action in (_FIRE, _FIRE + 1):
            observation, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info

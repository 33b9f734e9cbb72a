"""Histograms, images and videos that callbacks add to a result, besides numbers.

Owns their contents; sinks decide what they take, and how. `metrics.jsonl` and checkpoints hold only
numbers: `results.plain_row` leaves media out. Images and videos need pillow.

    H, W  height and width    T  frames
"""

import sys
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Media:
    """Base of what a result may hold besides numbers."""


class Histogram(Media):
    """The distribution of numbers.

    Args:
        values: numbers, in any shape; infinite ones and NaN are left out.

    Raises:
        TypeError: the values are not numbers.
    """

    def __init__(self, values: ArrayLike) -> None:
        numbers = np.asarray(values)
        if numbers.size and numbers.dtype.kind not in "biuf":
            raise TypeError(f"a histogram is of numbers, not of {numbers.dtype}")
        self.values: NDArray[np.float64] = numbers.astype(np.float64)[np.isfinite(numbers)]


class Image(Media):
    """A picture.

    Args:
        picture: uint8 ``[H, W]`` or ``[H, W, 3]``, or a figure of matplotlib, which is drawn at
            once and, if it is one of pyplot's, closed.

    Raises:
        ValueError: it has another shape or type.
    """

    def __init__(self, picture: Any) -> None:
        from PIL.Image import fromarray

        if hasattr(picture, "savefig"):
            picture = _drawn(picture)
        self.picture = fromarray(_frame(picture))


class Video(Media):
    """A sequence of frames.

    Args:
        frames: uint8, each ``[H, W]`` or ``[H, W, 3]``, as `render()` of an environment with
            ``render_mode="rgb_array"`` returns them.
        fps: frames per second; in a GIF they last a multiple of 10 ms.

    Raises:
        ValueError: they have another shape or type, or there are none.
    """

    def __init__(self, frames: Iterable[ArrayLike], fps: float = 30.0) -> None:
        from PIL.Image import fromarray

        self._pictures = [fromarray(_frame(frame)) for frame in frames]
        if not self._pictures:
            raise ValueError("a video needs at least one frame")
        self.size = self._pictures[0].size  # W, H
        self._duration_ms = max(round(100.0 / fps), 2) * 10  # players slow down below 20 ms

    def gif(self) -> bytes:
        """The frames as a GIF that repeats."""
        file, (first, *others) = BytesIO(), self._pictures
        first.save(
            file,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=self._duration_ms,
            loop=0,
        )
        return file.getvalue()


def _frame(picture: ArrayLike) -> NDArray[np.uint8]:
    array = np.asarray(picture)
    if array.dtype != np.uint8 or not (array.ndim == 2 or array.shape[2:] == (3,)):
        found = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"a picture must be uint8 [H, W] or [H, W, 3], not {found}")
    return array


def _drawn(figure: Any) -> NDArray[np.uint8]:
    """A figure of matplotlib as bytes ``[H, W, 3]``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.array(canvas.buffer_rgba())[..., :3]
    if pyplot := sys.modules.get("matplotlib.pyplot"):  # which keeps figures until they are closed
        pyplot.close(figure)
    return drawn

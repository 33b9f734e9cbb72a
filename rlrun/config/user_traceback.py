"""What of a traceback is the user's own.

Owns the choice of frames. Must not know what was called, or what becomes of the text.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType

_OWN_PACKAGES = ("rlrun.", "gymnasium.", "ray.")


def user_traceback(error: BaseException) -> str:
    """Format ``error`` with the frames of the user's code only.

    Frames of rlrun, gymnasium and Ray are dropped; if nothing else remains, all are kept, since
    then the failure lies there.
    """
    frames = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN_PACKAGES)
    ]
    if not frames or error.__traceback__ is None:
        return "".join(traceback.format_exception(error))
    summary = traceback.StackSummary.extract(_kept(error.__traceback__, {id(f) for f in frames}))
    lines = ["Traceback (most recent call last):\n", *summary.format()]
    return "".join([*lines, *traceback.format_exception_only(error)])


def _kept(tb: TracebackType | None, frame_ids: set[int]) -> Iterator[tuple[FrameType, int]]:
    for frame, line_number in traceback.walk_tb(tb):
        if id(frame) in frame_ids:
            yield frame, line_number

"""The loop that docs/concepts.md shows runs as it stands there."""

import re

from source_tree import ROOT

PAGE = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")


def test_the_loop_by_hand_runs_and_its_weights_arrive():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "CustomPolicy" in block]
    names = {"__name__": "page"}
    exec(compile(code, "docs/concepts.md", "exec"), names)
    group, policy = names["group"], names["policy"]
    try:
        assert policy.w == 1.0 + 3 * 2 * 200
        weights = group.foreach_env_runner(lambda runner: runner.policy.w)
        assert weights == [policy.w, policy.w]
    finally:
        group.stop()

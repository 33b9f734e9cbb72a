"""docs/concepts.md tells one PPO iteration: in few files, not too long, all of them there."""

import re

from source_tree import LADDER, LEAF, PACKAGE, ROOT

MAX_FILES = 10
MAX_LINES = 3300

CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")


def test_the_story_is_short_and_its_files_exist() -> None:
    told = re.findall(r"^\d+\. `([a-z_/]+\.py)`", CONCEPTS, re.MULTILINE)
    assert told, "the numbered list is missing"
    assert len(told) <= MAX_FILES
    lines = {name: (PACKAGE / name).read_text(encoding="utf-8").count("\n") for name in told}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_files_named_on_the_page_exist() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", CONCEPTS))
    assert not {name for name in named if not (PACKAGE / name).exists()}


def test_the_rooms_are_listed_in_the_order_of_the_ladder() -> None:
    table = re.findall(r"^\| `([a-z]+)` \|", CONCEPTS, re.MULTILINE)
    assert table == [*LADDER, LEAF]

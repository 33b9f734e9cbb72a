"""The pages of docs/ and the code that they show."""

import re

from source_tree import ROOT


def page(name):
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(text, language):
    """The code blocks of a page in this language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def execute(code, names, source):
    """Run a block; it reads and adds `names`."""
    exec(compile(code, source, "exec"), names)

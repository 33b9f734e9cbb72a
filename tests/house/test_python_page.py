"""docs/python.md is up to date, and has each public name once, with its documentation."""

import re

from pages import page

import rlrun
from rlrun.config.python_reference import python_reference


def test_the_page_is_up_to_date():
    hint = "run: python -m rlrun.config.python_reference"
    assert page("python.md") == python_reference(), hint


def test_each_public_name_stands_on_the_page_once():
    assert sorted(re.findall(r"^### (\w+)$", page("python.md"), re.M)) == sorted(rlrun.__all__)
    assert "```text\n\n```" not in page("python.md")

"""docs/index.md names each page of docs/ once, and the links of all pages lead somewhere."""

import re

import pytest
from pages import page
from source_tree import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_each_page_is_in_the_index_under_its_own_title():
    listed = re.findall(r"^- \[(.*?)\]\((.*?)\): .+$", page("index.md"), re.MULTILINE)
    titles = {
        path.name: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        for path in PAGES
    }
    del titles["index.md"]
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


def test_the_readme_leads_to_the_index():
    assert "(docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if not target.startswith(("http:", "https:")):
            file = path.parent / target if target else path
            assert file.exists(), link
            if anchor:
                assert anchor in anchors(file.read_text(encoding="utf-8")), link

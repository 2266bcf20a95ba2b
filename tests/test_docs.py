"""Documentation that can go stale is generated; what it points to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("images/**/*.md")])


def test_generated_pages_are_fresh():
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_make_target_named_in_the_documentation_exists():
    help_text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  make (\S+)", help_text, re.MULTILINE))
    named = {
        target
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("make ")
        for target in re.findall(r"(?<= )[a-z][a-z-]*(?= |$)", line.split("#")[0])
    }
    assert "demo" in named
    assert named <= known

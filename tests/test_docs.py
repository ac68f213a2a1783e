"""What the README says runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_readmes_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_first_example_is_twenty_lines_at_most() -> None:
    assert len(EXAMPLES[0].splitlines()) <= 22


def test_every_file_that_the_readme_links_to_is_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert link.startswith("http") or (ROOT / link).exists(), link

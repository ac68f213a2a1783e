"""The names that are promised, the documentation's, and the tree of errors."""

from __future__ import annotations

import re
from pathlib import Path

import diskbuffer as db
from diskbuffer import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskbuffer"


def test_the_public_names_are_those_that_are_promised() -> None:
    assert set(errors.__all__) | {"Column", "ReplayBuffer", "Uniform", "__version__"} <= set(db.__all__)
    assert sorted(db.__all__) == list(db.__all__)
    assert all(getattr(db, name) is not None for name in db.__all__)
    public = {name for name in vars(db) if not name.startswith("_") and not name.islower()}
    assert public == set(db.__all__) - {"__version__", "check", "marks", "remove_mark"}
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", db.__version__)


def test_every_name_that_the_documentation_mentions_is_there() -> None:
    pages = [*ROOT.glob("README.md"), *ROOT.glob("docs/*.md"), *PACKAGE.rglob("*.py"), *ROOT.glob("examples/*.py")]
    for page in pages:
        for name in re.findall(r"\bdb\.(\w+)", page.read_text()):
            assert name in db.__all__, f"{page.name} mentions db.{name}"


def test_every_error_is_in_the_tree_that_its_module_draws() -> None:
    drawn = re.findall(r"(\w+Error)(?: \((\w+)\))?", errors.__doc__ or "")
    assert {name for name, _ in drawn} == set(errors.__all__)
    for name, builtin in drawn:
        assert not builtin or builtin in {base.__name__ for base in getattr(db, name).__mro__}

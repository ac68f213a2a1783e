"""The names that are promised, the documentation's, and the tree of errors."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import diskbuffer as db
from diskbuffer import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskbuffer"
GROUPS = {"TryAgainError", "InputError", "CorruptionError", "NotFoundError", "LockedError"}


def test_the_public_names_are_those_that_are_promised() -> None:
    assert GROUPS | {"DiskBufferError", "Column", "ReplayBuffer", "Uniform", "__version__"} <= set(db.__all__)
    assert not (set(errors.__all__) - GROUPS - {"DiskBufferError"}) & {*db.__all__, *vars(db)}
    assert sorted(db.__all__) == list(db.__all__)
    assert all(getattr(db, name) is not None for name in db.__all__)
    public = {name for name in vars(db) if not name.startswith("_") and not name.islower()}
    assert public == set(db.__all__) - {
        *("__version__", "check", "check_env", "errors", "marks", "remove_mark", "remove_writer"),
        *("restore_wrapper_arrays", "wrapper_arrays"),
    }
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", db.__version__)


def test_every_name_that_the_documentation_mentions_is_there() -> None:
    pages = [*ROOT.glob("README.md"), *ROOT.glob("docs/*.md"), *PACKAGE.rglob("*.py"), *ROOT.glob("examples/*.py")]
    for page in pages:
        for name in re.findall(r"\bdb\.(\w+)", page.read_text()):
            assert name in db.__all__, f"{page.name} mentions db.{name}"


def test_every_error_is_in_the_tree_that_its_module_draws() -> None:
    drawn = re.findall(r"^([│├└─ ]*)(\w+Error)(?: \((\w+)\))?", errors.__doc__ or "", re.M)
    assert sorted(name for _, name, _ in drawn) == errors.__all__
    above: dict[int, str] = {}
    for branch, name, builtin in drawn:
        bases = {base.__name__ for base in getattr(errors, name).__bases__}
        assert bases == {above.get(len(branch) - 4, "Exception"), *filter(None, [builtin])}, name
        above[len(branch)] = name
    assert {name for branch, name, _ in drawn if len(branch) == 4} == GROUPS


def test_an_error_shows_its_message_and_can_be_copied() -> None:
    for name in errors.__all__:
        error = getattr(errors, name)("what is wrong")
        for one in (error, copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert (type(one), str(one), one.args) == (type(error), "what is wrong", ("what is wrong",))
        assert getattr(error, "msg", str(error)) == str(error)  # an ImportError's


def test_every_error_has_an_option_and_advice_and_keeps_them_in_a_pickle() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert (kind("what").option, kind("what").advice, str(kind("what"))) == ("", "", "what")
        if kind is errors.MissingPackageError:
            continue  # whose message says how to install it
        error = kind("what", option="size", advice="Do this")
        for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (one.option, one.advice, str(one)) == ("size", "Do this", "what. Do this")
            assert str(one.advising("Do that")) == "what. Do that"

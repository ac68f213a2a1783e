"""`constraints.txt` pins all that the tests and checks install, so that another day's releases change nothing."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
BESIDE = ("pip", "setuptools", "cython", "numpy", "tianshou")  # that the Makefile installs without an extra


def pinned() -> dict[str, str]:
    """Return the version of each package that is pinned for this Python."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    wanted = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in wanted}


def installed() -> dict[str, str]:
    """Return the version of each package that is here for the extra `test`, and for what that needs."""
    found, looked_at = dict[str, str](), set[tuple[str, str]]()
    waiting = [("diskbuffer", extra) for extra in ("", "test")] + [(name, "") for name in BESIDE]
    while waiting:
        name, extra = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # what is there for other systems
            continue
        found[name] = distribution.version.partition("+")[0]
        looked_at.add((name, extra))
        for each in map(Requirement, distribution.requires or () if name != "tianshou" else ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                needed = [(canonicalize_name(each.name), one) for one in ("", *each.extras)]
                waiting.extend(one for one in needed if one not in looked_at)
    del found["diskbuffer"]
    return found


def test_all_that_is_installed_is_pinned() -> None:
    pins = pinned()
    other = {name: version for name, version in installed().items() if pins.get(name) != version}
    assert not other, f"constraints.txt does not have these as they are installed: {other}"


def test_the_docs_have_the_versions_that_are_pinned_and_the_bounds_of_the_extras() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \| `([^`]+)`", (ROOT / "docs" / "adapters.md").read_text(), re.MULTILINE)
    assert {name for name, _, _ in rows} == {"torchrl", "tensordict", "tianshou", "ray", "stable-baselines3"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    allowed = [each for extra in extras.values() for each in extra if not each.startswith("diskbuffer")]
    for name, version, requirement in rows:
        assert pinned()[name] == version
        assert requirement in allowed
        assert "<" in requirement
        assert {canonicalize_name(Requirement(each).name) for each in allowed if "<" not in each}.isdisjoint({name})
        assert version in Requirement(requirement).specifier

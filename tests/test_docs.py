"""What the README and the docs say runs, and what they link to is there."""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db

ROOT = Path(__file__).parent.parent


def code_of(page: Path) -> list[str]:
    """Return a page's examples, but those that need a cluster."""
    return re.findall(r"```python\n(.*?)```", page.read_text().partition("\n## Ray\n")[0], re.DOTALL)


@pytest.mark.parametrize("code", code_of(ROOT / "README.md"))
def test_the_readmes_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # and again, where a run before has left its stores
        exec(compile(code, "README.md", "exec"), {})


# Each page's examples run one after the other, as a reader runs them.
PAGES = [
    *(ROOT / "docs" / name for name in ("index.md", "tutorial.md", "adapters.md", "readers.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]


def pages() -> list[Any]:
    """Return the pages with code; all but the tutorial are of the nightly set."""
    return [
        pytest.param(page, marks=[] if page.stem == "tutorial" else [pytest.mark.nightly], id=page.stem)
        for page in PAGES
        if code_of(page)
    ]


@pytest.mark.parametrize("page", pages())
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(amount(1, 2)):
        names: dict[str, object] = {}
        for code in code_of(page):
            if "__main__" in code:  # it starts processes, which import it
                (tmp_path / "page.py").write_text(code)
                subprocess.run([sys.executable, "page.py"], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
            else:
                exec(compile(code, page.name, "exec"), names)


@pytest.mark.nightly
def test_the_tutorial_runs_as_a_notebook(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    runpy.run_path(str(ROOT / "docs" / "notebook.py"))["write_notebook"](
        ROOT / "docs" / "tutorial.md", tmp_path / "tutorial.ipynb"
    )
    notebook: Any = nbformat.reads((tmp_path / "tutorial.ipynb").read_text(), 4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code == [example.strip() for example in code_of(ROOT / "docs" / "tutorial.md")]
    for _ in range(2):
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_the_recurrent_network_of_the_docs_does_not_run_over_padding(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    (code,) = code_of(ROOT / "docs" / "how-to" / "recurrent.md")
    exec(compile(code.partition("\ncolumns = ")[0], "recurrent.md", "exec"), names)
    core, obs = torch.nn.GRU(6, 5, batch_first=True), np.random.default_rng(0).normal(size=(11, 6)).astype(np.float32)
    columns = {"obs": db.Column((6,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer, torch.no_grad():
        buffer.extend(obs=obs, action=np.zeros(10, int), reward=np.zeros(10))
        batch = buffer.sample(7, db.Slices(4, burn_in=6, replace=False))  # from every step on, once
        mask, padded = batch["mask"], batch["obs"].clone()
        assert sorted(mask[:, :6].sum(1).tolist()) == list(range(7))
        for filling in (0.0, 1e3, float("nan")):
            padded[~mask] = filling
            found, _ = core(padded[:, 6:], names["state_after"](core, padded[:, :6], mask[:, :6]))
            for outputs, steps, there in zip(found, batch["steps"], mask, strict=True):
                alone, _ = core(torch.from_numpy(obs[steps[there].numpy()])[None])  # the same steps, and nothing else
                torch.testing.assert_close(outputs, alone[0, -4:])


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_the_reference_names_what_is_there(page: Path) -> None:
    for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)$", page.read_text(), re.MULTILINE):
        if kind == "module":
            importlib.import_module(name)
        else:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


IN_A_READ_ONLY_SYSTEM = r"""
set -e
root=$1 python=$2 base=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/own /mnt/base
chown 65534:65534 /mnt/own
if ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$base"; then  # such as below /root
    mount --bind "$base" /mnt/base
    first=/$(echo "$base" | cut -d/ -f2)
    mount -t tmpfs -o mode=755 tmpfs "$first"
    mkdir -p "$base"
    mount --bind /mnt/base "$base"
fi
mount --bind /mnt/own /mnt/own
cut -d" " -f5 /proc/self/mountinfo | sort -u | while read -r place; do
    [ "$place" = /mnt/own ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
done
cd /mnt/own
as_nobody="setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all env -i PATH=$PATH PYTHONPATH=$root"
as_nobody="$as_nobody PYTHONPYCACHEPREFIX=$PYTHONPYCACHEPREFIX"
if ! $as_nobody test -r "$root/README.md" || ! $as_nobody "$python" -c "import torch, zarr"; then exit 77; fi
if $as_nobody touch /tmp/x /var/tmp/x 2>/dev/null; then exit 77; fi
exec $as_nobody "$python" - "$root/README.md" <<"END"
import re, sys
for code in re.findall(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.DOTALL):
    exec(compile(code, "README.md", "exec"), {})
print("all of them")
END
"""


@pytest.mark.nightly
def test_the_readmes_examples_run_for_a_user_without_a_home_who_can_write_to_the_store_alone() -> None:
    missing = [tool for tool in ("unshare", "setpriv", "mount") if shutil.which(tool) is None]
    if sys.platform != "linux" or os.getuid() != 0 or missing:
        pytest.skip("mounting a system read-only takes root, and Linux's unshare, setpriv and mount")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces cannot be made here")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", IN_A_READ_ONLY_SYSTEM, "bash", str(ROOT.absolute()), sys.executable, sys.base_prefix],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip("another user can write elsewhere, or cannot run this interpreter")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all of them" in done.stdout


def test_the_first_example_is_twenty_lines_at_most() -> None:
    assert len(code_of(ROOT / "README.md")[0].splitlines()) <= 22


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else page.parent / file
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made on GitHub and by MyST."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def test_every_page_is_in_the_contents() -> None:
    listed = set()
    for page in (ROOT / "docs").glob("**/*.md"):
        for contents in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), re.DOTALL):
            listed |= {(page.parent / name).with_suffix(".md") for name in contents.split("\n") if name and name[0] != ":"}
    assert {*(ROOT / "docs").glob("**/*.md")} - {ROOT / "docs" / "index.md"} <= listed


def test_the_reference_is_built_without_the_libraries_that_adapters_are_for() -> None:
    """Whatever they import with their modules is a dependency, or replaced by `docs/conf.py`."""
    settings: dict[str, Any] = {"__file__": str(ROOT / "docs" / "conf.py")}
    exec((ROOT / "docs" / "conf.py").read_text(), settings)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    there = {re.split(r"[^\w-]", name)[0].replace("-", "_") for name in project["dependencies"]}
    there |= {"diskbuffer", *sys.stdlib_module_names, *settings["autodoc_mock_imports"]}
    for file in (ROOT / "diskbuffer" / "adapters").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.split(".")[0] for name in names} <= there, file

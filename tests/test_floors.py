"""The house: which package may import which, and which modules may touch the operating system's files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "diskbuffer"

# From the bottom to the top. A module imports from its own package and from floors below, never from beside or above. A package
# is known by the longest name that fits; "" is `diskbuffer` itself, which loads its public names when they are first used.
FLOORS = (
    ("errors", "version"),
    ("runtime", "arguments"),
    ("native",),
    ("schema",),
    ("index", "store.format"),
    ("samplers", "store.system", "zarr_codec"),
    ("store.segments",),
    ("store",),  # a store's directory, and the store itself
    ("store.recovery", "store.writing"),
    ("store.copies",),
    ("store.opening",),  # which knows the store, what a crash left of it, and its marks
    ("store.checking", "store.copies.backup"),  # these open stores
    ("limiting", "options"),
    ("reading", "recording"),
    ("loading", "writers", "episode_table"),
    ("opening",),
    ("reader", "copies", "columns"),
    ("drawing", "episodes"),
    ("buffer",),
    ("mixture", "plugin"),
    ("",),
    # the line
    ("inspect.pictures",),
    ("adapters", "inspect"),
    ("formats",),
    ("editing",),
    ("adapters.sb3", "adapters.torchrl", "adapters.tianshou", "commands"),
    ("adapters.ray", "adapters.rllib"),
    ("__main__",),
)
GUESTS = ("adapters", "formats", "inspect", "commands", "editing", "__main__")
# What guests get of the core, and what is private in it. Some of these names are private in guests, too, or in other libraries.
OPENED = (
    *("buffer", "columns.columns", "copies", "episodes", "reader"),
    *("plugin.appender", "plugin.shared_store", "samplers.prioritized"),
)
THEIR_OWN = {"_ever", "_how", "_read", "_table", "_threads"}
FOR_GUESTS = ("", "plugin", "errors")  # all that these import of the core

PURE = ("store.format", "index")
FILES = "store.system"

# Calls that touch files. Methods are those that a `Path` has, and `Files` has not: the types are not known here.
FILE_MODULES = {"fcntl", "glob", "io", "mmap", "shutil", "tempfile"}
OS_FUNCTIONS = {
    *("access", "chmod", "close", "copy_file_range", "fdatasync", "fsync", "ftruncate", "link", "listdir", "lseek", "lstat"),
    *("makedirs", "mkdir", "open", "posix_fallocate", "pread", "pwrite", "read", "readlink", "remove", "removedirs", "rename"),
    *("replace", "rmdir", "scandir", "stat", "statvfs", "symlink", "sync", "truncate", "unlink", "utime", "walk", "write"),
}
PATH_METHODS = {
    *("glob", "is_dir", "is_file", "is_symlink", "iterdir", "mkdir", "read_bytes", "read_text", "rglob", "rmdir", "symlink_to"),
    *("touch", "unlink", "write_bytes", "write_text"),
}
NUMPY_FUNCTIONS = {"fromfile", "load", "memmap", "save", "savez", "tofile"}

# Modules that touch files without `store.system`, and why they may.
TOUCHES_FILES = {
    "native.sources": "whether the native code was built from the sources that are there",
    "native.webp": "pictures in memory",
    "commands.app": "the null device, once nobody reads what a command writes",
    "commands.show": "a picture or a movie, where the caller wants it",
    "inspect.environment_check": "a temporary store",
    "inspect.plan": "temporary stores, and the room on the disk that a store is to be on",
    "arguments.shown": "files that a user asks for",
    "inspect.pictures.curves": "pictures in memory",
    "inspect.pictures.images": "pictures in memory",
    "inspect.pictures.movies": "movies in memory",
    "writers.columns": "a lock of its own, by its descriptor",
    "writers.description": "a lock of its own, by its descriptor; whether a path is a directory",
    "formats.json_files": "what is exported, and notes beside it",
    "formats.fingerprint": "by what a source is recognised",
    "formats.importing": "whether a source is a directory",
    "formats.rlds": "pictures in memory",
    "formats.untrusted": "links in a directory that is to be imported",
    "formats.hdf5.files": "HDF5 files that are to be imported",
    "formats.hdf5.libero": "files in a directory that is to be imported",
    "formats.hdf5.sink": "HDF5 files that are exported",
    "formats.lerobot.episodes": "files of a data set of LeRobot",
    "formats.lerobot.images": "pictures in memory",
    "formats.lerobot.file_set": "files of a data set of LeRobot",
    "formats.lerobot.tasks": "files of a data set of LeRobot",
    "formats.lerobot.writer": "files of a data set of LeRobot",
    "formats.minari.arrow_layout": "directories that are to be imported",
    "formats.minari.images": "pictures in memory",
    "formats.minari.metadata": "metadata that are imported or exported",
    "formats.minari.source": "a directory that is to be imported",
    "formats.minari.target": "a directory that is exported to",
    "formats.npz.directory": "directories of episodes of others",
    "formats.npz.dreamer_writing": "what is exported, in its hidden directory",
    "formats.npz.ogbench": "files of others",
    "formats.npz.writing": "what is exported, in its hidden directory",
    "formats.tensordicts.arrays": "files of others",
    "formats.tensordicts.reading": "files of others",
    "formats.tensordicts.writing": "what is exported, in its hidden directory",
    "formats.video": "what is exported, in its hidden directory",
    "formats.webdataset": "what is exported, in its hidden directory",
    "formats.zarr2.group": "files of others",
    "formats.zarr2.writing": "what is exported, in its hidden directory",
    "editing.buckets": "files that go to a bucket, or come from one into a hidden directory",
    "formats.unfinished": "what is made beside its place until it is whole",
    "store.building": "directories above a store, which are the user's and may be links",
    "store.checking.salvage": "links and directories in the places of files, which `Files` refuses",
    "adapters.ray.node_store": "the directory of a node, and its identity",
    "adapters.torchrl.checkpointer": "directories of checkpoints",
    "adapters.torchrl.replacing": "a whole store that takes another one's place",
    "adapters.torchrl.samplers": "directories of checkpoints",
    "adapters.torchrl.storage": "temporary stores",
    "adapters.torchrl.stored": "copies of snapshots, in place of its store",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module, by its name without "diskbuffer."."""
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(file.read_text())
    return found


@cache
def at_run_time(name: str) -> list[ast.AST]:
    """Return all that is in a module but for what only a type checker sees."""
    found, left = list[ast.AST](), [*modules()[name].body]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            left += node.orelse
        else:
            found.append(node)
            left += ast.iter_child_nodes(node)  # type: ignore[arg-type]
    return found


@cache
def imports(name: str, *, for_types: bool = False) -> frozenset[str]:
    """Return what a module imports, wherever in it: modules of ours by their names here, others by their full names."""
    found: set[str] = set()
    for node in ast.walk(modules()[name]) if for_types else at_run_time(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            of_it = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if known(full) in modules() else str(node.module) for full in of_it.values()}
    return frozenset(known(full) for full in found)


def known(full: str) -> str:
    return full.removeprefix("diskbuffer").removeprefix(".") if full.split(".")[0] == "diskbuffer" else f"/{full}"


@cache
def floor_of(name: str) -> tuple[int, str]:
    """Return a module's floor, and the package there that it is in."""
    fitting = [
        (len(package), floor, package)
        for floor, packages in enumerate(FLOORS)
        for package in packages
        if package == name or (package and name.startswith(f"{package}."))
    ]
    assert fitting, f"{name} is on no floor: add it to FLOORS"
    return max(fitting)[1:]


def ours(name: str, *, for_types: bool = False) -> list[str]:
    return [other for other in imports(name, for_types=for_types) if not other.startswith("/")]


def test_imports_only_go_down() -> None:
    assert len(modules()) > 80
    up = {
        (name, other)
        for name in modules()
        for other in ours(name)
        if floor_of(other)[1] != floor_of(name)[1] and floor_of(other)[0] >= floor_of(name)[0]
    }
    assert up == set(), "these imports go up, or to a neighbour"


def is_guest(name: str) -> bool:
    return name.split(".")[0] in GUESTS


def test_nothing_below_the_line_imports_the_core_but_by_its_door() -> None:
    pairs = [(name, other) for name in modules() for other in ours(name, for_types=True) if is_guest(name) != is_guest(other)]
    assert [(name, other) for name, other in pairs if is_guest(name) and other not in FOR_GUESTS] == []
    public = [("", "inspect.environment_check")]  # for type checkers: it is imported when it is first used
    assert [(name, other) for name, other in pairs if is_guest(other)] == public


def private_names(nodes: Iterator[ast.AST], *, of_self: bool) -> set[str]:
    """Return the attributes that begin with one underscore, of `self` or of anything else."""
    found = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_"]
    return {node.attr for node in found if (isinstance(node.value, ast.Name) and node.value.id == "self") == of_self}


def test_nothing_below_the_line_uses_what_is_private_in_a_buffer() -> None:
    private = set[str]().union(*(private_names(ast.walk(modules()[name]), of_self=True) for name in OPENED))
    assert {"_reader", "_store", "_drawing", "_access", "_derived"} <= private
    for name in filter(is_guest, modules()):
        assert private_names(ast.walk(modules()[name]), of_self=False) & private <= THEIR_OWN, name


def test_every_floor_is_lived_on() -> None:
    assert {floor_of(name)[1] for name in modules()} == {package for packages in FLOORS for package in packages}


def test_no_module_imports_itself_through_others() -> None:
    left = {name: set(ours(name)) - {name} for name in modules()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}, "each of these imports another one of them"


def test_the_store_and_the_samplers_do_not_know_each_other() -> None:
    for name in modules():
        beside = {"store": "samplers", "samplers": "store"}.get(name.split(".")[0])
        assert [other for other in ours(name) if other.split(".")[0] == beside] == [], name


@cache
def touches(name: str) -> set[str]:
    """Return the calls of a module, and its imports, that touch files."""
    found = {other[1:] for other in imports(name) if other[1:].split(".")[0] in FILE_MODULES}
    for node in at_run_time(name):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found |= {f"os.{alias.name}" for alias in node.names if alias.name in OS_FUNCTIONS}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            found.add("open")
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            numpys = of == "np" and node.attr in NUMPY_FUNCTIONS
            if (of == "os" and node.attr in OS_FUNCTIONS) or numpys or node.attr in PATH_METHODS:
                found.add(f"{of}.{node.attr}")
    return found


def test_one_package_touches_files() -> None:
    found = {name: sorted(touches(name)) for name in modules() if touches(name) and not name.startswith(FILES)}
    assert {name: calls for name, calls in found.items() if name not in TOUCHES_FILES} == {}
    assert TOUCHES_FILES.keys() - found.keys() == set(), "these no longer do: take them off the list"
    assert any(touches(name) for name in modules() if name.startswith(FILES))


@pytest.mark.parametrize("package", PURE)
def test_what_is_pure_has_nothing_to_do_with_files(package: str) -> None:
    inside = [name for name in modules() if name.startswith(package)]
    assert len(inside) > 2
    for name in inside:
        wrong = {"/os", "/pathlib", *(f"/{module}" for module in FILE_MODULES)}
        assert not imports(name) & wrong, name
        assert not any(other.startswith(FILES) for other in imports(name)), name


def test_what_gathers_rows_opens_nothing() -> None:
    inside = [name for name in modules() if name.startswith("reading.gather")]
    assert len(inside) > 3
    for name in inside:
        assert not any(other.startswith((FILES, "store.store", "store.directory")) for other in imports(name)), name
        called = {
            node.func.attr for node in at_run_time(name) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & {"open", "map", "map_open"}, name

"""Odd values in every argument and option of the commands: they work, or there is a message; never a traceback."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.commands.app import COMMANDS
from diskbuffer.commands.cli import main
from diskbuffer.formats import export, import_, registry
from tests.amounts import amount
from tests.formats import episodes as made
from tests.formats import test_naming as sources
from tests.formats.test_resuming import robomimic

ODD = [
    *("-1", "0", "5", "1.5", "1e400", "1e-400", "NaN", "Infinity", "-inf", f"1{'0' * 400}", "9" * 5000, f"-{'9' * 30}", "0x10"),
    *("", " ", "é☃\u202e\n", "=", "a=b", "true", "null", "data", "[]", "{}", '{"a": [1]}', "[1]", "[[1]]", '["x"]', "[null]"),
    *("9223372036854775808", "[" * 3000, "../x", "-", "--"),
]
LOSSES = ("final_obs", "final_info", "tags", "derived", "pictures", "columns", "attributes")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "store"
    columns = {**made.COLUMNS, "reward": db.Column((), "float32")}
    return made.store_of(path, made.some(3, columns=columns, longest=4), columns)


def run(capsys: pytest.CaptureFixture[str], line: list[str | Path], new: Path) -> None:
    for left in [*new.parent.glob(f"{new.name}*"), *new.parent.glob(".*.unfinished")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    code = main([str(argument) for argument in line])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert code == 0 or err.strip(), line
    assert not (code and list(new.parent.glob(".*.unfinished"))), line


def some(lines: list[Any], n: int, seed: int) -> Iterator[Any]:
    random = np.random.default_rng(seed)
    for number in random.permutation(len(lines))[: amount(n, len(lines))].tolist():
        yield lines[number]


@pytest.mark.some(2)
@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"view", "plan", "import", "export"}))
def test_commands(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new = tmp_path / "new"
    places: dict[str, list[str | Path]] = {
        "snapshot": [new],
        "copy": [new],
        "merge": [store, new],
        "tag": ["x"],
        "remove-writer": ["x"],
    }
    module, function = COMMANDS[name][0].split(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters.values()
    options = [
        f"--{p.name.replace('_', '-')}" for p in parameters if p.kind is p.KEYWORD_ONLY and "bool" not in str(p.annotation)
    ]
    line: list[str | Path] = [name, store, *places.get(name, [])]
    lines: list[list[str | Path]] = []
    for odd in ODD:
        lines += [[*line, option, odd] for option in options]
        if name != "tag":  # which would tag it
            lines += [[*line[:place], odd, *line[place + 1 :]] for place in range(1, len(line))]
    if name == "show":
        lines += [[name, store, "--out", tmp_path / f"new{end}", "--fps", odd] for odd in ODD for end in (".gif", ".mp4")]
    for one in some(lines, 15, len(name)):
        run(capsys, one, new)
    for seed in ("-1", "9" * 5000) if "--seed" in options else ():
        run(capsys, [*line, "--seed", seed], new)


def options_of(kind: str) -> list[tuple[str, str]]:
    found = []
    for name in registry.OURS:
        format = registry.find(name)
        call = format.read if kind == "import" else format.write
        if call is not None and name not in ("rlds", "sb3"):
            parameters = list(inspect.signature(call).parameters.values())[1 if kind == "import" else 2 :]
            found += [(name, parameter.name) for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return found


@pytest.mark.nightly
def test_options_of_exports(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [argument for loss in LOSSES for argument in ("--allow-loss", loss)]
    lines = [(*option, odd) for option in options_of("export") for odd in ODD]
    known = [
        ("lerobot", "fps", "1e400"),
        ("lerobot", "fps", "NaN"),
        ("minari", "compression", "[]"),
        ("video", "fps", "[" * 3000),
    ]
    for name, option, odd in [*known, *some(lines, 15, 0)]:
        run(
            capsys, ["export", name, store, tmp_path / "new", *losses, "--option", f"{option}={odd}", "--quiet"], tmp_path / "new"
        )


@pytest.mark.nightly
def test_options_of_imports(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [argument for loss in LOSSES for argument in ("--allow-loss", loss)]
    lines = [(*option, odd) for option in options_of("import") for odd in ODD]
    known = [
        ("diffusion_policy", "action", "5"),
        ("dreamer", "actions", "5"),
        ("tensordict", "obs", "5"),
        ("robomimic", "mask", "[]"),
    ]
    known += [("dreamer", "max_ratio", "0"), ("ogbench", "max_ratio", '"x"')]
    for name, option, odd in [*known, *some(lines, 15, 1)]:
        source = made_source(name, store, tmp_path)
        more = ["--option", "version=2"] if name == "dreamer" and option != "version" else []
        line = ["import", name, source, tmp_path / "new", *losses, *more, "--option", f"{option}={odd}", "--quiet"]
        run(capsys, line, tmp_path / "new")


def made_source(name: str, store: Path, tmp_path: Path) -> Path:
    path = tmp_path / f"of {name}{'.npz' if name == 'ogbench' else ''}"
    if not path.exists() and name in ("minari", "lerobot"):
        export(name, store, path, allow_loss=["final_obs"], progress=False)
    elif not path.exists():
        sources.FORMATS[{"umi": "diffusion_policy", "libero": "robomimic"}.get(name, name)][0](path, {}, False)
    return path


def test_a_wrong_option_is_not_called_damage_of_the_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = made_source("ogbench", store, tmp_path)
    for given, said in (
        (["--max-ratio", "0"], "max-ratio must be"),
        (["--option", "max_ratio=3"], "max_ratio is no option of a format"),
        (["--option", "options=3"], "ogbench has no option 'options'"),
    ):
        assert main(["import", "ogbench", str(source), str(tmp_path / "new"), *given]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "damaged" not in err


def test_an_episodes_number_of_thousands_of_digits_is_an_error_that_says_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        file.create_group(f"data/demo_{'7' * 5000}")
    with pytest.raises(db.errors.SourceError, match="digits at most"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "new", progress=False)


# Whose words


def test_errors_name_options_as_whoever_called_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "file.hdf5"
    robomimic(source, np.random.default_rng(0), [3, 4])
    with h5py.File(source, "a") as file:
        file["data/demo_1/rewards"][1] = np.nan
    line = ["import", "robomimic", str(source), str(tmp_path / "new"), "--quiet"]
    assert main(line) == 2
    err = capsys.readouterr().err
    assert "--allow-nan" in err
    assert not re.search(r"\w=|\(", err)
    assert main([*line, "--allow-nan"]) == 2
    assert "begin anew: --restart" in capsys.readouterr().err
    assert main([*line, "--allow-nan", "--restart"]) == 0
    with pytest.raises(db.InputError, match="allow_nan=True") as raised:
        import_("robomimic", source, tmp_path / "other", progress=False)
    assert "--" not in str(raised.value)


def test_an_option_of_several_words_is_named_with_its_dashes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", str(store), str(tmp_path / "new"), "--chunk-rows", "3"]) == 2
    assert "--chunk-rows" in capsys.readouterr().err
    for name in ("chunk_rows", "chunk_rows.zarr", "my-chunk_rows", "chunk_rows-2"):  # of a path, it stays
        assert main(["copy", str(tmp_path / name), str(tmp_path / "new"), "--chunk-rows", "2"]) == 2
        assert str(tmp_path / name) in capsys.readouterr().err
    with pytest.raises(db.InputError, match="chunk_rows"):
        editing.copy(store, tmp_path / "new", chunk_rows=3, progress=False)


def test_losses_are_allowed_in_the_words_of_whoever_called(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "diffusion_policy", str(store), str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert "--allow-loss final_obs" in err
    assert "allow_loss" not in err
    with pytest.raises(db.errors.LossError, match=re.escape("allow_loss=['final_obs']")) as raised:
        export("diffusion_policy", store, tmp_path / "new", progress=False)
    assert "--" not in str(raised.value)

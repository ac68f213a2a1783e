"""Batches are bit for bit those of the digests in `batches.json`, for every sampler, seed and store; and what
compiled functions return has those in `kernels.json`.

The digests were made before the compiled functions were replaced, and are the reference that what comes after them is compared
with. To make them anew::

    python -m pytest tests/frozen --freeze

which writes what it finds into the two files, in place of comparing. That a digest becomes another one means that a seed gives
other batches than it did before, and that runs cannot be repeated: a change that users are told of in the CHANGELOG. A new store
or sampler only adds lines.

They are the same on every processor: `test_processors.py` compares them with what a process gives that uses fewer instructions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import kernels
from tests.frozen.batches import LESS, digests_of
from tests.frozen.digests import digest_of
from tests.frozen.stores import STORES

HERE = Path(__file__).parent
WEBP = "1.6.0"  # of libwebp


def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / file).read_text())
    return found


def _write(file: str, found: dict[str, Any]) -> None:
    frozen = _read(file) if (HERE / file).exists() else {}
    (HERE / file).write_text(json.dumps(dict(sorted((frozen | found).items())), indent=0) + "\n")


def _compare(name: str, found: dict[str, dict[str, str]], *, parts: bool = False) -> None:
    """Compare what was found of a store; with `parts`, some of a case's digests may be missing."""
    frozen = _read("batches.json")[name]
    assert found.keys() == frozen.keys()
    other = dict[str, list[str]]()
    for case, digests in found.items():
        of = {part: digest for part, digest in frozen[case].items() if part in digests} if parts else frozen[case]
        if of != digests:
            other[case] = [part for part in of.keys() | digests.keys() if of.get(part) != digests.get(part)]
    assert not other, f"{name}: these are not as they were frozen: {other}"


@pytest.fixture
def freeze(request: pytest.FixtureRequest) -> bool:
    """Whether digests are written, and not compared."""
    return bool(request.config.getoption("--freeze"))


def _webp(name: str) -> None:
    """Skip where Pillow is missing, or its encoder is another one than the digests are of."""
    if name == "WebP":
        pytest.importorskip("PIL", reason="needs Pillow: pip install 'diskbuffer[webp]'")
        from PIL import features

        if (version := features.version("webp")) != WEBP:
            pytest.skip(f"the digests are of pictures that libwebp {WEBP} encoded; this is {version}")


@pytest.mark.some(8)
@pytest.mark.parametrize("name", STORES)
def test_batches_are_as_they_were_frozen(name: str, freeze: bool, tmp_path: Path) -> None:
    """Of 1 and 8 samples; of more in the nightly set."""
    _webp(name)
    if freeze:
        _write("batches.json", {name: digests_of(name, tmp_path)})
    else:
        _compare(name, digests_of(name, tmp_path, sizes=LESS), parts=True)


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STORES)
def test_batches_of_any_size_are_as_they_were_frozen_with_one_thread_or_two(name: str, threads: int, tmp_path: Path) -> None:
    _webp(name)
    _compare(name, digests_of(name, tmp_path, threads))


def test_everything_that_is_frozen_has_a_digest_and_all_of_them_are_small(freeze: bool) -> None:
    if freeze:
        return
    assert _read("batches.json").keys() == STORES.keys()
    assert _read("kernels.json").keys() == kernels.CASES.keys()
    assert sum(file.stat().st_size for file in HERE.glob("*.json")) < 200_000


@pytest.mark.parametrize("name", kernels.CASES)
def test_compiled_functions_return_what_was_frozen(name: str, freeze: bool, tmp_path: Path) -> None:
    """Of each case the digest is over the values that it yields, one after the other."""
    found = {name: digest_of(kernels.CASES[name](tmp_path))}
    if freeze:
        _write("kernels.json", found)
    else:
        assert _read("kernels.json")[name] == found[name]

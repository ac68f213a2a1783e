"""One store's episodes in several."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.editing.new_store import NewStore, place_beside
from diskbuffer.editing.newest import within_capacity
from diskbuffer.errors import InputError
from diskbuffer.formats.stored import StoreSource
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.plugin import EpisodeTable, counted, integer, is_store, progress_bar

StorePath = str | os.PathLike[str]
Int64 = npt.NDArray[np.int64]


def split(
    store: StorePath,
    new: Sequence[StorePath],
    *,
    fractions: Sequence[float] | None = None,
    seed: int = 0,
    tags: Sequence[str] | None = None,
    where: Sequence[str] | None = None,
    progress: bool = True,
) -> list[Path]:
    """Write a store's episodes to several new ones, each to one of them. The store stays as it is.

    Parameters
    ----------
    store : path-like
        A training may be writing to it.
    new : sequence of path-like
        At each there must be nothing, or an empty directory.
    fractions : sequence of float, optional
        How many of the episodes each gets, drawn at random; they sum up to 1.
    seed : int
        Of that draw: the same episodes with the same seed.
    tags : sequence of str, optional
        The tag of the episodes that each gets.
    where : sequence of str, optional
        Conditions, as ``diskbuffer episodes --where`` has them: an episode goes to the first that holds for it. With `tags` and
        `where`, one store more than there are of these gets the rest.
    progress : bool
        Whether to show progress.

    Returns
    -------
    list of pathlib.Path
        The new stores' paths.

    Raises
    ------
    InputError
        Not exactly one of `fractions`, `tags` and `where` is given, or not as many as stores; an episode would be in none of
        them, or a store have none.
    CorruptionError, LockedError
        As for `copy`.
    """
    paths = [place_beside(path, store) for path in new]
    if isinstance(new, str) or len(paths) < 2 or len({*paths}) < len(paths):
        raise InputError("give two or more different paths of new stores")
    with closing(StoreSource(store, choose=within_capacity)) as source:
        parts = _parts(source.table, len(paths), fractions, seed, tags, where)
        for path, part in zip(paths, parts, strict=True):
            if not len(part):
                raise InputError(f"{path} would have no episode")
        with ExitStack() as stack:
            return _write(source, paths, parts, stack, progress)


def _write(source: StoreSource, paths: list[Path], parts: list[Int64], stack: ExitStack, progress: bool) -> list[Path]:
    """Make all parts, and only then move them to their places, one after the other."""
    task = {"edit": "split", "of": source.fingerprint(), "to": [str(path) for path in paths]}
    tasks = [{**task, "episodes": part.tolist()} for part in parts]
    others = [Unfinished(path, task).is_begun() for path, task in zip(paths, tasks, strict=True)]
    # A run that was killed between two of the moves left the later ones as they were.
    done = [is_store(path) and any(others[n + 1 :]) for n, path in enumerate(paths)]
    left = [n for n in range(len(paths)) if not done[n]]
    places = {n: stack.enter_context(Unfinished(paths[n], tasks[n])) for n in left}
    sources = {n: source.part(np.isin(source.table.episode, parts[n])) for n in left}
    with progress_bar(sum(int(part.table.length.sum()) for part in sources.values()), 0, progress, "steps") as shown:
        for n, part in sources.items():
            NewStore.like(part).make(places[n].place, part.episodes(), shown.update)
    source.warn_of_changes()
    for n in left:
        places[n].finish()
    return paths


def _parts(
    table: EpisodeTable,
    n: int,
    fractions: Sequence[float] | None,
    seed: int,
    tags: Sequence[str] | None,
    where: Sequence[str] | None,
) -> list[Int64]:
    """Return the ids of the episodes in each of `n` stores."""
    if sum(given is not None for given in (fractions, tags, where)) != 1:
        raise InputError("give one of fractions, tags and conditions: how the episodes are to be split")
    if fractions is not None:
        return _by_fractions(table, n, fractions, seed)
    given = tags if tags is not None else where
    assert given is not None
    if isinstance(given, str) or len(given) not in (n, n - 1):
        raise InputError(f"{n} new stores need {n} tags or conditions, or {n - 1}, and the last store has the rest")
    holds = [table.tag == tag for tag in tags] if tags is not None else [table.where(text) for text in given]
    for name, found in zip(given, holds, strict=True):
        if not found.any():
            raise InputError(f"no episode is like that: {name!r}")
    part = np.full(len(table), len(given), np.int64)
    for number in reversed(range(len(given))):
        part[holds[number]] = number
    if len(given) == n and (rest := int((part == n).sum())):
        raise InputError(f"{counted(rest, 'episode')} would be in no store; give one more, which has the rest")
    return [table.episode[part == number] for number in range(n)]


def _by_fractions(table: EpisodeTable, n: int, fractions: Sequence[float], seed: int) -> list[Int64]:
    shares = [float(share) for share in fractions]
    if len(shares) != n or not all(0 < share < 1 for share in shares) or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise InputError(f"{n} new stores need {n} fractions between 0 and 1 that sum up to 1, found {shares}")
    seed = integer("seed", seed, 0, most=None)
    bounds = np.rint(np.cumsum([0.0, *shares]) * len(table)).astype(np.int64)
    drawn = np.random.default_rng(seed).permutation(table.episode[np.lexsort((table.episode, table.stream))])
    return [np.sort(drawn[first:last]) for first, last in itertools.pairwise(bounds)]

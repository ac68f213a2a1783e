"""The index of a store's rows: against going through them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diskbuffer.index.fields import ENDED, EPISODES, FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.reading.follow_stored_index import find_growth
from diskbuffer.reading.stored_index import read_rows
from diskbuffer.storage.following import Seen
from diskbuffer.storage.format.words import OPEN, Entries
from diskbuffer.storage.segments import Segments
from tests.amounts import amount

Bools = npt.NDArray[np.bool_]
ROWS = 8
FLAGS = ("is_last", "truncated", "terminated")


class Made:
    """Rows of environments, which lie in segments of any length, some of which repeat a row, or follow rows that are missing."""

    def __init__(self, rng: np.random.Generator, *, gaps: float = 0.2, recorded: bool = False) -> None:
        self.environments = int(rng.integers(1, 5))
        self.rows: list[dict[int, dict[str, bool]]] = []  # by environment and position
        begun: list[tuple[float, int, int, int]] = []  # when, whose, the first row and the end
        for environment in range(self.environments):
            rows, when, position = dict[int, dict[str, bool]](), 0.0, 0
            for _ in range(int(rng.integers(0, 6))):
                first, when = position, when + rng.random()
                end = first + int(rng.integers(1, ROWS + 1))
                begun.append((when, environment, first, end))
                for at in range(first, end):
                    rows[at] = self._row(rng)
                position = end + (
                    int(rng.integers(1, 5)) if rng.random() < gaps else -1 if end - first > 1 and rng.random() < 0.3 else 0
                )
            self.rows.append(rows)
            if recorded:
                self._begin_prefixes(rows)
        begun.sort()
        files = -(-len(begun) // self.environments)
        self.flags = {path: np.zeros((files, self.environments, ROWS), np.bool_) for path in FLAGS}
        words = np.zeros((len(begun), 8), np.int64)
        for number, (_, environment, first, end) in enumerate(begun):
            before = [self.rows[environment][at]["is_last"] for at in range(first) if at in self.rows[environment]]
            start = max(
                (at + 1 for at in range(first) if self.rows[environment].get(at, {"is_last": True})["is_last"]), default=0
            )
            words[number, :4] = environment + 1, first, start, before.count(False)
            for at in range(first, end):
                for path in FLAGS:
                    self.flags[path][number // self.environments, number % self.environments, at - first] = self.rows[
                        environment
                    ][at][path]
        self.entries = entries = Entries(np.arange(len(begun)), words, np.full(len(begun), OPEN, np.uint8))
        entries.words[:, 5] = [end for *_, end in begun]
        entries.states[:] = OPEN + 1
        heads = np.array([max(rows, default=-1) + 1 for rows in self.rows])
        self.segments = Segments.of(*entries.in_order(heads), np.zeros(self.environments, np.int64))

    @staticmethod
    def _begin_prefixes(rows: dict[int, dict[str, bool]]) -> None:
        """Have the first row of each prefix be terminated, as one that is recorded is."""
        was_last, in_prefix = True, False
        for row in rows.values():
            is_prefix = was_last and row["is_last"] and row["truncated"]
            row["terminated"] |= is_prefix and not in_prefix
            was_last, in_prefix = row["is_last"], is_prefix

    @staticmethod
    def _row(rng: np.random.Generator) -> dict[str, bool]:
        last = bool(rng.random() < 0.5)
        return {"is_last": last, "truncated": last and bool(rng.random() < 0.7), "terminated": last and bool(rng.random() < 0.3)}

    def expected(self, environment: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return where episodes start, and the prefixes of their stacks: an episode's first row, and the prefix's."""
        rows, starts, prefixes = self.rows[environment], [0], list[tuple[int, int]]()
        head, prefix, was_last = max(rows), None, True
        for at in range(head + 1):
            row = rows.get(at)
            if at and (was_last or row is None):
                starts.append(at)
            if prefix is not None and not (row and was_last and row["is_last"] and row["truncated"] and not row["terminated"]):
                prefixes.append((at, prefix))
                prefix = None
            if prefix is None and row and was_last and row["is_last"] and row["truncated"]:
                prefix = at
            was_last = row is None or row["is_last"]
        return starts, prefixes


@pytest.mark.parametrize("seed", range(amount(60, 1000)))
def test_the_index_of_stored_rows_has_their_episodes(seed: int) -> None:
    made = Made(np.random.default_rng(seed))
    index = Index(made.environments, ROWS, 0, made.environments)

    def flags(path: str, file: int) -> Bools:
        return np.asarray(made.flags[path][file])

    index.restore(*read_rows(made.segments, flags, made.environments, {}))
    for environment, rows in enumerate(made.rows):
        if not rows:
            assert index.heads[environment] == -1
            continue
        starts, prefixes = made.expected(environment)
        assert index.starts(environment).tolist() == starts
        assert index.heads[environment] == max(rows)
        assert bool(index.table[environment, 1]) == rows[max(rows)]["is_last"]
        found: Any = index.leads(environment).tolist()
        assert [tuple(each) for each in found] == prefixes


def told(index: Index) -> list[Any]:
    """Return every field of an index, as numbers and lists."""
    found: list[Any] = [index.table[:, [HEAD, ENDED, LOW, FLOOR, EPISODES]].tolist(), index.added_each().tolist()]
    for environment in range(len(index.table)):
        segments = dict(index.segments(environment).tolist())  # of two, the later counts
        leads = index.leads(environment)
        leads[:, 1] = np.maximum(
            leads[:, 1], index.table[environment, LOW] - 1
        )  # one that is gone in part began by then, or before
        found.append([segments, index.starts(environment).tolist(), leads.tolist(), index.first_step(environment)])
    return found


@pytest.mark.parametrize("seed", range(amount(100, 2000)))
def test_an_index_that_grows_is_as_one_that_is_read_anew(seed: int) -> None:
    """Rows come, newest rows turn out to be the last of their episodes, or not to be, and the oldest segments are evicted."""
    rng = np.random.default_rng([seed, 1])
    made, context = Made(rng, gaps=0, recorded=True), int(rng.integers(0, 4))
    entries, environments = made.entries, made.environments
    ends = np.array([max(rows, default=-1) + 1 for rows in made.rows])
    rows, low, waiting = np.zeros(environments, np.int64), np.zeros(environments, np.int64), np.zeros(0, np.int64)
    index = Index(environments, ROWS, context, environments)
    for _ in range(6):
        rows = np.where(rng.random(environments) < 0.7, rng.integers(rows, ends + 1), rows)
        for environment in np.flatnonzero(rng.random(environments) < 0.3).tolist():
            mine = (entries.environments == environment) & (entries.firsts <= rows[environment])
            some = [*entries.firsts[mine].tolist(), int(rows[environment])]
            low[environment] = max(low[environment], some[int(rng.integers(len(some)))])
        begun = entries[entries.firsts <= rows[entries.environments]]
        begun.states[(begun.ends >= rows[begun.environments]) | (rng.random(len(begun.states)) < 0.5)] = OPEN
        flags = {path: values.copy() for path, values in made.flags.items()}
        for n in np.flatnonzero(
            rng.random(len(begun.segments)) < 0.3
        ).tolist():  # what is done at the newest row is not known yet
            at = int(rows[begun.environments[n]] - 1 - begun.firsts[n])
            file, lane = divmod(int(begun.segments[n]), environments)
            if 0 <= at < ROWS and not flags["truncated"][file, lane, at]:  # a prefix is there with all that says so
                flags["is_last"][file, lane, at] = False

        def flag(path: str, file: int) -> Bools:
            return np.asarray(flags[path][file])  # noqa: B023

        index.drop_below(low)
        is_new = ~np.isin(begun.segments, waiting) | (begun.segments > index.newest_segments()[begun.environments])
        index.restore(*find_growth(index, Seen(rows, low, begun[is_new], False), flag, environments, {}))
        waiting = begun.segments
        index.drop_below(low)
        anew = Index(environments, ROWS, context, environments)
        anew.restore(*read_rows(Segments.of(*begun.in_order(rows), low), flag, environments, {}))
        assert told(index) == told(anew)

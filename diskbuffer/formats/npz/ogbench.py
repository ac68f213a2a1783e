"""Data sets of OGBench: all steps one after the other, in one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.npz.reading import npz_arrays
from diskbuffer.formats.rows import RowRange, Shaped, column_of
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows

_NAMED = {"observations": "obs", "actions": "action", "rewards": "reward"}


class OGBenchSource:
    """Read a data set of one file, in any of the three forms that OGBench has.

    The one that is published: each episode's last row has its final observation, an action of no consequence, and a terminal. The
    *compact* one is the same with ``valids``, which are 0 in those rows. The third has ``next_observations`` instead of them.
    ``terminals`` are where the recording of an episode ended, so episodes are truncated.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise SourceError(f"there is no file {path}; a data set of OGBench is a file, NAME.npz, and NAME-val.npz is another")
        self._path, self._arrays = path, npz_arrays(path)
        arrays = self._arrays
        missing = [name for name in ("observations", "actions", "terminals") if name not in arrays]
        if missing:
            raise SourceError(f"{path} has no {', '.join(map(repr, missing))}; it has {', '.join(arrays)}")
        lengths = {name: rows.shape[0] if rows.shape else 0 for name, rows in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"{path}: its arrays should have as many rows each, found {lengths}")
        self._rows = lengths["terminals"]
        self._shifted = "next_observations" in arrays  # so the last row of an episode is a step
        self._ends = self._find_ends()
        apart = ("terminals", "next_observations") if self._shifted else ("terminals", "valids")
        own = {name: path for name, path in _NAMED.items() if name in arrays}
        self._paths = {name: path for (name,), path in column_paths([(n,) for n in arrays if n not in apart], own).items()}
        columns = {at: column_of(self._shown(name), path, name) for name, at in self._paths.items()}
        self.contents = Contents(columns, len(self._ends), self._rows - (0 if self._shifted else len(self._ends)))
        self.losses: Mapping[str, str] = self._find_losses()

    def _find_ends(self) -> npt.NDArray[np.int64]:
        """Return the number of rows up to the end of each episode."""
        name = "valids" if "valids" in self._arrays and not self._shifted else "terminals"
        values = self._arrays[name].flags(self._rows)
        ends = np.flatnonzero(values == 0 if name == "valids" else values) + 1
        if not len(ends) or ends[-1] < self._rows:
            ends = np.append(ends, self._rows)  # which was cut off
        begins = np.append(0, ends[:-1])
        least = 1 if self._shifted else 2
        if not self._rows or (ends - begins).min() < least:
            at = int(ends[np.argmin(ends - begins)]) - 1
            raise SourceError(f"{self._path}: the episode that ends at row {at} has fewer than {least} rows")
        self._cut_off = not (values[-1] == 0 if name == "valids" else values[-1])
        return ends

    def _find_losses(self) -> dict[str, str]:
        more = [name for name in self._paths if name not in ("observations", "actions", "rewards")]
        if not more or self._shifted:
            return {}
        return {"final_info": f"{', '.join(more)}: of final observations, at which no step begins"}

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        for number in range(len(self._ends)):
            begin, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
            steps = end - begin - (0 if self._shifted else 1)
            columns: dict[str, Rows] = {}
            for name, path in self._paths.items():
                columns[path] = RowRange(self._shown(name), begin, begin + steps + (path == "obs" and not self._shifted))
            if self._shifted:
                following = RowRange(self._arrays["next_observations"], begin, end)
                columns["obs"] = _Continued(columns["obs"], following, self._path, begin)
            truncated = np.zeros(steps, bool)
            truncated[-1] = number < len(self._ends) - 1 or not self._cut_off
            yield EpisodeData({**columns, "truncated": truncated}, steps)

    def _shown(self, name: str) -> Rows:
        rows = self._arrays[name]
        return Shaped(rows, ()) if name == "rewards" and rows.shape[1:] == (1,) else rows

    def close(self) -> None:
        """Close the file."""
        for rows in self._arrays.values():
            rows.close()


class _Continued:
    """Observations, and the last of the ones that follow; each of these is the observation of the next row."""

    def __init__(self, rows: Rows, following: Rows, where: Path, begin: int) -> None:
        self._rows, self._following, self._where, self._begin = rows, following, where, begin
        self.shape = (rows.shape[0] + 1, *rows.shape[1:])
        self.dtype = rows.dtype
        if following.shape[1:] != rows.shape[1:] or following.dtype != rows.dtype:
            raise SourceError(f"{where}: observations and next_observations should be of one dtype and shape")

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        values = np.asarray(self._rows[first : min(last, self._rows.shape[0])])
        following = np.asarray(self._following[max(first, 1) - 1 : max(last, 1) - 1])
        here = values[1:] if first == 0 else values
        same = (following[: len(here)] == here) | ((following[: len(here)] != following[: len(here)]) & (here != here))
        if not same.all():
            row = self._begin + max(first, 1) + int(np.flatnonzero(~same.reshape(len(here), -1).all(axis=1))[0])
            raise SourceError(f"{self._where}: the observation of row {row} is not the next_observation of the row before it")
        return np.concatenate([values, following[-1:]]) if last > self._rows.shape[0] else values


OGBENCH = Format("ogbench", "data sets of OGBench, .npz", OGBenchSource)

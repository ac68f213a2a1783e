"""LIBERO: a file of robomimic's kind for each task, without next observations.

Published at https://github.com/Lifelong-Robot-Learning/LIBERO, `scripts/create_dataset.py`, which writes them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from diskbuffer.errors import SourceError
from diskbuffer.formats.hdf5.files import Hdf5File, Node
from diskbuffer.formats.hdf5.robomimic import arrays, attribute_losses, ends, environment_of
from diskbuffer.formats.hdf5.trajectories import Trajectory, TrajectorySource, not_read, numbered
from diskbuffer.formats.notes import fitting
from diskbuffer.plugin import Format, Source


def read(path: Path) -> Source:
    """Open a file, or a directory of files: a suite.

    Each demonstration has its task's instruction as its tag.

    Raises
    ------
    SourceError
        It is no such file, or is damaged.
    """
    paths = sorted(path.glob("*.hdf5")) if path.is_dir() else [path]
    if not paths:
        raise SourceError(f"{path} has no files *.hdf5")
    files: list[Hdf5File] = []
    try:
        trajectories, tasks, args = [], {}, None
        groups: list[tuple[Node, Collection[str]]] = []
        for one in paths:
            files.append(Hdf5File(one, "hdf5"))
            data = files[-1].root.group("data")
            fields = {name: data.json(name) for name in data.attributes()}
            tasks[one.stem] = fields
            args = args or fields.get("env_args")
            demos = numbered(files[-1], data, "demo_")
            groups += [(files[-1].root, ("data",)), (data, [name for _, name in demos])]
            for number, name in demos:
                trajectories.append(Trajectory(files[-1], ("data", name), instruction(fields.get("problem_info")), number))
        metadata, losses = fitting("libero", tasks)
        return TrajectorySource(
            trajectories,
            arrays,
            ends,
            environment=environment_of(args),
            metadata=metadata,
            losses={**losses, **attribute_losses(trajectories, {"num_samples"}), **not_read(groups)},
        )
    except BaseException:
        for file in files:
            file.close()
        raise


def instruction(problem_info: Any) -> str:
    """Return the instruction of a task, which is a text, or a list of its pieces."""
    text = problem_info.get("language_instruction") if isinstance(problem_info, dict) else None
    if isinstance(text, list) and all(isinstance(piece, str) for piece in text):
        text = "".join(text)
    return text.strip().strip('"') if isinstance(text, str) else ""


LIBERO = Format("libero", "LIBERO's HDF5: a file, or a suite's directory", read)

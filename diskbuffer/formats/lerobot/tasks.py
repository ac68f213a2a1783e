"""`meta/tasks.parquet`: the texts of tasks, as pandas writes a table with texts as its index."""

from __future__ import annotations

import json
import os
from pathlib import Path

from diskbuffer.formats.lerobot.arrays import pyarrow
from diskbuffer.formats.lerobot.info import TASKS

_INDEX = "__index_level_0__"


class Tasks:
    """The tasks of a data set that is being written: each text has a number.

    Parameters
    ----------
    root : pathlib.Path
        The data set's directory; the tasks that an earlier run has written are taken up.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / TASKS
        self._numbers: dict[str, int] = {}
        self._written = -1
        if self._path.exists():
            for name in pyarrow("pyarrow.parquet").read_table(self._path).column(_INDEX).to_pylist():
                self.number(name)

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, task: str) -> int:
        """Return the number of a task, a new one where it has none."""
        return self._numbers.setdefault(task, len(self._numbers))

    def write(self) -> None:
        """Write the file, where there are new ones."""
        if self._written == len(self):
            return
        pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        names = list(self._numbers)
        table = pa.table({"task_index": pa.array(range(len(names)), pa.int64()), _INDEX: pa.array(names, pa.string())})
        new = self._path.with_suffix(".new")
        parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}), new)
        os.replace(new, self._path)
        self._written = len(self)


_PANDAS = {
    "index_columns": [_INDEX],
    "column_indexes": [
        {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": {"encoding": "UTF-8"}}
    ],
    "columns": [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", "metadata": None},
        {"name": None, "field_name": _INDEX, "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
    ],
    "attributes": {},
    "creator": {"library": "pyarrow", "version": "1"},
    "pandas_version": "2",
}

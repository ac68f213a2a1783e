"""The numbers that actors and learners share: a mapped file beside the store, or beside the stores of several writers.

    counts      what is asked for, what was sampled, and what each writer has added; see `fields`
    changing    who makes it, takes a writer in, or changes what is asked for, has a lock on it
    used        everybody has a shared lock on it, as long as it lives

Inserts are the steps that the writers' stores have ever had: a writer that comes back after a kill puts its number right.
"""

from __future__ import annotations

import errno
import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, InputError, LockedError, ReadOnlyError
from diskbuffer.limiting import fields
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.native import limiter as rule
from diskbuffer.runtime.uncopied import Uncopied
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files

Int64 = npt.NDArray[np.int64]
LIMITER = f"{SEGMENTS}/length/limiter"  # of one store: inside an array's directory, which no Zarr tool lists
FORMAT = 1
_COUNTS, _CHANGING, _USED = "counts", "changing", "used"
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


class Table(Uncopied):
    """The shared numbers, open.

    Parameters
    ----------
    files : Files
        A directory for them, which is made where there is none.
    settings : SampleToInsertRatio
        What whoever has it open must agree on; the first may change it.
    writer : int or None
        The number of the writer that this is; None for a learner.
    added : int
        How many steps that writer's store has ever had.

    Attributes
    ----------
    head : (16,) int64
    writers : (1024, 8) int64
    address : int
        Of the whole, for compiled code.
    """

    def __init__(self, files: Files, settings: SampleToInsertRatio, writer: int | None, added: int) -> None:
        self._files, self._used = files, -1
        try:
            files.make_directory(".")
            with files.alone(_CHANGING):
                self._used = files.open_lock(_USED, write=True)
                self._open(settings, alone=files.lock(self._used, exclusive=True))
                if writer is not None:
                    self._take_in(writer, added)
                if not files.lock(self._used, exclusive=False):
                    raise LockedError(f"{files.root / _USED} is locked by another program; which one is it?")
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
                raise ReadOnlyError(
                    f"{files.root} cannot be written to ({os.strerror(error.errno or 0)}), where limiter= counts samples"
                ) from error
            raise

    def _open(self, settings: SampleToInsertRatio, *, alone: bool) -> None:
        """Map the file; make it, or have it count anew, where something else is asked for than it has and nobody else uses it."""
        if not self._files.exists(_COUNTS):
            self._write(np.zeros(fields.WORDS, np.int64), settings)
        self._map()
        ratio, size, bound = self.settings
        if (ratio, size, bound) == (float(settings.ratio), settings.min_size, settings.bound):
            return
        if not alone:
            raise InputError(
                f"limiter: others have {self._files.root} open with a ratio of {ratio:g}, min_size={size} and "
                f"error_buffer={bound:g}, and {settings.ratio:g}, {settings.min_size} and {settings.bound:g} were asked for; "
                "give the same, or close the others first"
            )
        self._write(self._words.copy(), settings)
        self._map()

    def _write(self, words: Int64, settings: SampleToInsertRatio) -> None:
        """Put a file in place that counts from now on."""
        words[fields.VERSION] = FORMAT
        words[[fields.RATIO, fields.BOUND]] = np.array([settings.ratio, settings.bound], np.float64).view(np.int64)
        words[fields.MIN_SIZE] = settings.min_size
        words[fields.SAMPLES_BEFORE] = words[fields.SAMPLES]
        rows = words[fields.HEAD :].reshape(fields.MOST, fields.ROW)
        rows[:, fields.BEFORE] = rows[:, fields.ADDED]
        self._files.replace_contents(_COUNTS, words.tobytes())

    def _map(self) -> None:
        mapped = self._files.map(_COUNTS, 8 * fields.WORDS, writable=True)
        self._words: Int64 = mapped.array(np.int64, (fields.WORDS,))
        self.head, self.address = self._words[: fields.HEAD], mapped.address
        self.writers = self._words[fields.HEAD :].reshape(fields.MOST, fields.ROW)
        ratio, size, bound = self.settings
        if self.head[fields.VERSION] != FORMAT or not (0 < ratio < math.inf and 0 <= bound < math.inf and size > 0):
            raise CorruptionError(
                f"{self._files.root / _COUNTS} is damaged, or of a newer diskbuffer; remove it to have the limiter count anew"
            )

    @property
    def settings(self) -> tuple[float, int, float]:
        """The ratio, the least size, and the buffer of the error."""
        ratio, bound = self._words[[fields.RATIO, fields.BOUND]].view(np.float64).tolist()
        return ratio, int(self._words[fields.MIN_SIZE]), bound

    def _take_in(self, writer: int, added: int) -> None:
        """Correct the number of a writer that was never here, or that returned.

        A store that has fewer steps than were counted went back to a mark, or was in a power loss: what counted stays counted.
        """
        if not 0 <= writer < fields.MOST:
            raise InputError(f"limiter: there is room for {fields.MOST} writers, and this is number {writer}")
        row = self.writers[writer]
        if not row[fields.COME]:
            row[fields.BEFORE] = added
        row[fields.LOST] = max(int(row[fields.LOST]), int(row[fields.ADDED]) - added)
        row[fields.ADDED] = added + int(row[fields.LOST])
        row[fields.COME] = 1
        self.head[fields.ROWS] = max(int(self.head[fields.ROWS]), writer + 1)

    def figures(self) -> dict[str, Any]:
        """Return what was counted, as plain numbers."""
        ratio, size, bound = self.settings
        added, before = rule.inserts(self.address)
        samples = int(self.head[fields.SAMPLES] - self.head[fields.SAMPLES_BEFORE])
        return {
            "asked": ratio,
            "min_size": size,
            "error_buffer": bound,
            "added": added,
            "inserts": max(0, added - max(before, size)),
            "samples": samples,
            "surplus": rule.surplus(self.address),
        }

    def sync(self) -> None:
        """Sync it to the disk."""
        self._files.sync(_COUNTS)

    def close(self) -> None:
        """Use it no longer; twice is fine."""
        fd, self._used = self._used, -1
        if fd >= 0:
            self._files.close(fd)

"""Which memory each segment's file is mapped to, as compiled code needs it, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError, CorruptionError
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.layout import IDENTITY_BYTES, Layout
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.overlay import Layers


class Verify(Protocol):
    """Raise where the files of slots are not those that were meant; `damaged` tells that one of them is not what it should be."""

    def __call__(self, slots: Sequence[int], *, damaged: bool = False) -> None: ...  # noqa: D102


class Epoch:
    """Keep retired maps alive as long as their readers: epoch-based reclamation.

    A reader holds the epoch in which it looked up addresses. Maps retired later hang on that epoch or on one that follows it,
    and each epoch holds the next: they go when the last such reader releases it. No counting, and nobody waits.
    """

    __slots__ = ("following", "retired")

    def __init__(self) -> None:
        self.retired: tuple[Any, ...] = ()
        self.following: Epoch | None = None


class InMemory:
    """In place of a map."""

    def __init__(self, contents: npt.NDArray[np.uint8]) -> None:
        self._bytes = contents
        self.address, self.size = int(contents.ctypes.data), contents.nbytes

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View it as an array."""
        return self._bytes.view(dtype).reshape(shape)


class Zeros(InMemory):
    """In place of the map of a file that is not there, as nothing was written to it; takes no memory."""

    def __init__(self, size: int) -> None:
        super().__init__(np.zeros(size, np.uint8))


class Maps:
    """Map files when a slot is first read; ``verify(slots)`` raises where they are not those that were meant.

    ``check(path, slot, map)`` raises where a file is not what the table has a checksum of. ``is_final(slot)`` tells whether
    nobody will ever write to the slot's files of recorded columns. `sources[column, slot]` is (address, size), or zeros where
    nothing is mapped.
    """

    def __init__(
        self,
        files: Files,
        layout: Layout,
        verify: Verify,
        check: Callable[[str, int, Map | Zeros], None],
        is_final: Callable[[int], bool],
        *,
        writable: bool,
    ) -> None:
        self._files, self._layers = files, Layers(files)
        self._verify, self._check, self._is_final = verify, check, is_final
        self._layout = layout
        self._writable = writable  # columns that are derived
        self._paths = tuple(layout.schema)
        self._held: list[dict[int, Map]] = [{} for _ in self._paths]
        self._zeros: dict[int, Zeros] = {}  # by size
        # Whether files of derived columns are taken as they are, and as none where they are not whole: after a power loss each of
        # their values is an old or a new one.
        self.lenient = False
        self.closed = False
        self.sources: npt.NDArray[np.int64] = np.zeros((len(self._paths), 0, 2), np.int64)
        self.epoch = Epoch()

    def take_columns(self, layout: Layout, *, anew: bool = False) -> None:
        """Hold the columns of a layout, and no others; with `anew`, forget the maps of those that were written later."""
        slots = self.sources.shape[1]
        gone = [path for path in self._paths if path not in layout.schema or (anew and path in self._layout.derived)]
        for slot in range(slots) if gone else ():
            self.retire(slot, gone)
        held = dict(zip(self._paths, zip(self._held, self.sources, strict=True), strict=True))
        columns = [held.get(path) or ({}, np.zeros((slots, 2), np.int64)) for path in layout.schema]
        sources = np.stack([sources for _, sources in columns])
        with Uninterrupted():
            self._layout, self._paths = layout, tuple(layout.schema)
            self._held, self.sources = [maps for maps, _ in columns], sources

    def grow(self, slots: int) -> None:
        """Ensure room for `slots` slots."""
        more = np.zeros((len(self._paths), slots - self.sources.shape[1], 2), np.int64)
        self.sources = np.concatenate([self.sources, more], axis=1)

    def hold(self, path: str, slot: int, mapped: Map) -> None:
        """Serve reads of a slot from a map that exists already."""
        column = self._paths.index(path)
        self._held[column][slot] = mapped
        self.sources[column, slot] = mapped.address, mapped.size  # last: a Ctrl-C before this leaves it unmapped, for all who ask

    def ensure(self, slots: Iterable[int], paths: Iterable[str] | None = None) -> None:
        """Map the slots in some columns, or in all, where they are not; what is mapped already may be read in any case."""
        self._check_open()
        columns = [(path, self._paths.index(path)) for path in (self._paths if paths is None else paths)]
        slots, mapped = list(slots), []
        try:
            try:
                for slot in slots:
                    missing = [path for path, column in columns if not self.sources[column, slot, 0]]
                    if missing:
                        mapped.append(slot)
                    for path in missing:
                        self.get(path, slot)
            except CorruptionError:
                self._verify(mapped, damaged=True)  # which tells whether the file is damaged, or just another by now
                raise
            if mapped:
                self._verify(mapped)
        except BaseException:  # such as a Ctrl-C: what is not verified is not read
            with Uninterrupted():
                for slot in mapped:
                    self.retire(slot)
            raise

    def get(self, path: str, slot: int) -> Map:
        """Return the map of a slot in one column, made now if it has to be."""
        self._check_open()
        column = self._paths.index(path)
        mapped = self._held[column].get(slot) if self.sources[column, slot, 0] else None
        if mapped is None:
            packed, derived = path in self._layout.chunks_of, path in self._layout.derived
            size = -1 if packed else self._layout.flat_bytes(path)
            name = self._layout.data_file(path, slot)

            def check(fresh: Map) -> None:
                if packed and fresh.size < (least := self._layout.index_bytes(path) + IDENTITY_BYTES):  # the kernel relies on it
                    raise CorruptionError(
                        f"{self._files.root / name}: expected {least} bytes at least, found {fresh.size}; the file was cut short"
                    )
                if not (derived and self.lenient):
                    self._check(path, slot, fresh)

            if derived and not self._is_there(name, size):
                mapped = self._zeros.setdefault(size, Zeros(size))
                check(mapped)
            else:
                writable = derived and self._writable
                if derived or not self._is_final(slot):
                    self._layers.copy_up(name)
                mapped = checked_map(self._files, name, size, check, writable=writable, random=packed)
            self.hold(path, slot, mapped)
        return mapped

    def _is_there(self, name: str, size: int) -> bool:
        try:
            actual = self._files.stat(name).st_size
        except FileNotFoundError:
            return False
        return actual == size or not self.lenient

    def writable(self, path: str, slot: int) -> Map:
        """Return the map of a slot in a derived column, to be written to; its file is made if need be."""
        mapped = self.get(path, slot)
        if isinstance(mapped, Zeros):
            name = self._layout.data_file(path, slot)
            written = self._files.create_mapped(name, mapped.size)
            self.retire(slot, (path,))
            self.hold(path, slot, written)
            return written
        return mapped

    def forget_zeros(self) -> None:
        """Look for files anew where there were none."""
        for path, held in zip(self._paths, self._held, strict=True):
            if path not in self._layout.derived:
                continue
            for slot in [slot for slot, mapped in held.items() if isinstance(mapped, Zeros)]:
                self.retire(slot, (path,))

    def retire(self, slot: int, paths: Iterable[str] | None = None) -> None:
        """Serve a slot from its old maps no more; readers of them can go on."""
        columns = [self._paths.index(path) for path in (self._paths if paths is None else paths)]
        if not any(slot in self._held[column] for column in columns):
            return
        with Uninterrupted():
            self.sources[columns, slot] = 0
            self._retire([self._held[column].pop(slot, None) for column in columns])

    def _retire(self, retired: Iterable[Any]) -> None:
        self.epoch.retired = tuple(retired)
        self.epoch.following = Epoch()
        self.epoch = self.epoch.following

    def retire_all(self) -> None:
        """Serve nothing from old maps any more."""
        for slot in sorted({slot for held in self._held for slot in held}):
            self.retire(slot)

    def close(self, others: Iterable[Map]) -> None:
        """Serve nothing any more; all maps, and some others that plans read, go with the plans that there are."""
        self.closed = True
        self.retire_all()
        self._retire(others)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self._files.root} was closed; open it again")


def checked_map(files: Files, name: str, size: int, check: Callable[[Map], None], **how: bool) -> Map:
    """Map a file, as `Files.map` does, and check it; once more where it is not what it should be: sealed since, perhaps."""
    mapped = files.map(name, size, **how)
    try:
        check(mapped)
    except CorruptionError:
        mapped = files.map(name, size, **how)
        check(mapped)
    return mapped

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.sampling import Philox

Int64 = npt.NDArray[np.int64]

class Finishes:
    def add(
        self,
        what: str,
        out: npt.NDArray[Any],
        samples: int,
        rows: int,
        *,
        source: npt.NDArray[Any] | None = None,
        row_bytes: int = 0,
        number: str = "u1",
        rounded: str = "f4",
        extra: int = 0,
        begin: Int64 | None = None,
        end: Int64 | None = None,
        factors: npt.NDArray[np.float64] | None = None,
    ) -> None: ...

class Crew:
    def serve(self) -> None: ...
    def call(self, threads: int) -> None: ...
    def end(self) -> None: ...
    def renew(self) -> None: ...

class Job:
    def plan(
        self,
        table: Int64,
        mapped: Int64,
        targets: Int64,
        streams: Int64,
        positions: Int64,
        starts: Int64,
        lasts: Int64,
        before: int,
        rows: int,
        segment_rows: int,
        first_stream: int,
        lanes: int = 1,
    ) -> bool | None: ...
    def draw(
        self,
        table: Int64,
        mapped: Int64,
        targets: Int64,
        random: Philox,
        before: int,
        rows: int,
        segment_rows: int,
        ids: Int64,
    ) -> bool | None: ...
    def files(self) -> Int64: ...
    def find_sources(self, mapped: Int64) -> bool: ...
    def keep(self, what: Any) -> None: ...
    @property
    def runs(self) -> int: ...
    def finish(self, what: Finishes) -> None: ...
    def submit(self, crew: Crew, largest: int, parts: int, threads: int, urgent: bool = False, page_bytes: int = 0) -> None: ...
    def run(self, scratch: npt.NDArray[np.uint8], page_bytes: int = -1) -> bool: ...
    def withdraw(self) -> None: ...
    def cancel(self) -> None: ...
    def wait(self, scratch: npt.NDArray[np.uint8], seconds: float) -> bool: ...
    @property
    def largest(self) -> int: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def waits(self) -> int: ...
    @property
    def damage(self) -> tuple[int, int, int, tuple[int, ...], int] | None: ...

def join_pages(pieces: Int64, page_bytes: int) -> Int64: ...

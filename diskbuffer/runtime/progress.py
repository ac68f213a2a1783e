"""Progress bars, where tqdm is installed."""

from __future__ import annotations

from typing import Any


class _NoBar:
    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: int) -> None:
        """Show nothing."""


def bar(total: int | None, initial: int, shown: bool, unit: str) -> Any:
    """Return a progress bar, a context manager with ``update(n)``; one that shows nothing unless `shown`, and tqdm is there."""
    if shown:
        try:
            from tqdm import tqdm
        except ImportError:
            return _NoBar()
        return tqdm(total=total, initial=initial, unit=unit, smoothing=0.1, mininterval=0.5)
    return _NoBar()

"""What becomes of a batch before the caller gets it."""

from __future__ import annotations

from typing import Any

import torch

from diskbuffer.errors import InputError
from diskbuffer.plugin import Batch, Transform


class Delivering:
    """Apply the caller's function to batches, and copy them to a device.

    Parameters
    ----------
    device, transform
        As of `ReplayBuffer.sample`.
    """

    def __init__(self, device: torch.device | str | None, transform: Transform | None) -> None:
        if transform is not None and not callable(transform):
            raise InputError(f"transform must be a function of a batch, found {transform!r}")
        try:
            self._device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise InputError(f"device must be one that PyTorch knows, such as 'cuda' or 'cpu', found {device!r}") from error
        self._transform = transform

    def __call__(self, batch: Batch) -> Any:
        """Return what the caller gets."""
        result = batch if self._transform is None else self._transform(batch)
        return result if self._device is None else _moved(result, self._device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(part, device) for part in value)
    return value

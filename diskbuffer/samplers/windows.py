"""Windows around steps, by column: two observations, sixteen actions, as a policy that predicts chunks of actions needs.

Chi et al., 2023, "Diffusion policy: visuomotor policy learning via action diffusion"; Zhao et al., 2023, "Learning fine-grained
bimanual manipulation with low-cost hardware" (ACT). LeRobot calls them ``delta_timestamps``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array, integers, truth
from diskbuffer.arguments.integers import integer, shown
from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.samplers.columns import OpenColumn
from diskbuffer.samplers.draws import Offsets
from diskbuffer.samplers.population import Everything, population_of
from diskbuffer.samplers.starts import Starts

Int64 = npt.NDArray[np.int64]
_MOST = 2**31  # steps before or after
_TOLERANCE = 1e-4  # seconds, which an offset may be from a step, as LeRobot has it


class Windows(Starts):
    """Draw windows around steps.

    Each column has an axis for its offsets after the first: (batch_size, offsets, ...), with stacks of frames (batch_size,
    offsets, frame_stack, ...). Columns that are not named are not read, and there is no ``next_obs``: it is ``obs`` at 1.

    Parameters
    ----------
    columns : dict of str to sequence of int, or of float
        Of each column that is wanted, such as ``"obs/camera"`` or ``"action"``, which rows: offsets from the drawn step, in
        ascending order.
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    padding : {"edge", "zeros"}, optional
        Whether every step is drawn, and rows outside of its episode are the nearest row within, or zeros, and False in
        ``mask``, which is nested as the batch is, (batch_size, offsets) bool for each column. If not, steps whose windows leave
        the episode are not drawn, and there is no mask. Observations have one more row in an episode than actions: the final one.
    stride : int
        Steps from one offset to the next: all offsets are multiplied by it.
    seconds : bool
        Whether offsets are seconds, as LeRobot's ``delta_timestamps``. The buffer must have been made with ``metadata={"fps":
        30}``, its steps a second, as imported ones are; each offset must lie within 0.1 ms of a step.
    replace : bool
        As in `Slices`.
    episodes, max_age, age_column, without
        As in `Slices`, of the drawn step.

    Raises
    ------
    InputError
        An offset is no integer, or they do not ascend. When drawing: the buffer has no such column, or nothing tells how many
        steps a second it has.
    EmptyBufferError
        When drawing, where no episode has enough steps.

    Notes
    -----
    Offsets that follow each other are read as a run of rows; others, and stacks, row by row. Rows of one compressed chunk are
    decoded once.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32")}
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
    ...     _ = buffer.extend(obs=np.zeros((101, 3)), action=np.zeros((100, 2)), reward=np.ones(100))
    ...     batch = buffer.sample(32, db.Windows({"obs": (-1, 0), "action": range(-1, 15)}, padding="edge"))
    >>> batch["obs"].shape, batch["action"].shape, batch["mask"]["action"].shape
    (torch.Size([32, 2, 3]), torch.Size([32, 16, 2]), torch.Size([32, 16]))
    """

    sample, shorter = "a window", 'with smaller offsets, or with padding="edge"'

    def __init__(
        self,
        columns: Mapping[str, Iterable[float]],
        seed: int | None = None,
        *,
        padding: Literal["edge", "zeros"] | None = None,
        stride: int = 1,
        seconds: bool = False,
        replace: bool = True,
        episodes: Any = None,
        max_age: float | None = None,
        age_column: str | None = None,
        without: str | None = None,
    ) -> None:
        if not isinstance(columns, Mapping) or not columns or not all(isinstance(path, str) for path in columns):
            example = '{"obs": (-1, 0), "action": range(16)}'
            raise InputError(f"columns must be a dict of offsets, such as {example}, found {shown(columns)}")
        if padding is not None and not (isinstance(padding, str) and padding in ("edge", "zeros")):
            raise InputError(f"padding must be 'edge', 'zeros' or None, found {padding!r}")
        given = {path: _listed(path, each) for path, each in columns.items()}
        self._seconds = {path: _seconds(path, each) for path, each in given.items()} if truth("seconds", seconds) else None
        self._fps: float | None = None
        self._stride, self._padding = integer("stride", stride, 1, most=_MOST), padding
        super().__init__(seed, population_of(episodes, max_age, age_column, without), 1, replace=replace)
        if self._seconds is None:
            self._set_offsets({path: _integers(path, each) for path, each in given.items()})
        else:  # until the buffer tells how many steps a second has
            self.form = Offsets(tuple(self._seconds.items()), padding)  # type: ignore[arg-type]

    @property
    def draws_every_step(self) -> bool:
        """Whether no step is left out."""
        return self._padding is not None and type(self._population) is Everything

    def _set_offsets(self, columns: Mapping[str, Int64]) -> None:
        """Draw windows with these offsets, in steps."""
        self.form = form = Offsets(
            tuple((path, _strided(path, each, self._stride)) for path, each in columns.items()), self._padding
        )
        if self._padding is None:
            self._needed, self._before = form.needed, form.before

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Meet the buffer that is to be drawn from."""
        super().attach(index, column)
        if self._seconds is None:
            return
        fps = column("tag", None).fps
        if fps is None:
            raise InputError(
                "seconds=True: nothing tells how many steps a second the buffer has: make it with "
                'metadata={"fps": 30}, or give offsets in steps'
            )
        if self._fps is None:
            self._set_offsets({path: _in_steps(path, each, fps) for path, each in self._seconds.items()})
            self._fps = fps
        elif self._fps != fps:
            raise InputError(
                f"seconds=True: this sampler met a buffer with {self._fps:g} steps a second before, and this one has {fps:g}; "
                "make one for each"
            )


def _listed(path: str, offsets: Any) -> Any:
    """Return offsets as an array or a tuple, of which nobody else has a part."""
    if hasattr(offsets, "dtype"):
        return as_array(f"the offsets of {path!r}", offsets).copy()
    return tuple(offsets) if isinstance(offsets, Iterable) and not isinstance(offsets, str | bytes | Mapping) else offsets


def _integers(path: str, offsets: Any) -> Int64:
    """Return offsets in steps; an InputError where they are no integers."""
    try:
        return integers(f"the offsets of {path!r}", offsets)
    except InputError as error:
        raise error.advising("Offsets are steps; seconds=True has them in seconds, as LeRobot's delta_timestamps") from None


def _seconds(path: str, offsets: Any) -> tuple[float, ...]:
    """Return offsets in seconds; an InputError where they are none, or do not ascend."""
    what = f"the offsets of {path!r}"
    array = as_array(what, offsets)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        raise InputError(f"{what}: expected seconds, such as (-0.1, 0.0), found {shown(offsets)}")
    seconds = array.astype(np.float64)
    if not np.isfinite(seconds).all() or (np.diff(seconds) <= 0).any():
        raise InputError(f"{what}: expected seconds that ascend, such as (-0.1, 0.0), found {shown(offsets)}")
    return tuple(seconds.tolist())


def _in_steps(path: str, seconds: tuple[float, ...], fps: float) -> Int64:
    """Return offsets in steps; an InputError where one lies too far from a step, as LeRobot's data sets have it."""
    what, given = f"the offsets of {path!r}", np.array(seconds)
    steps = np.round(given * fps)
    for far in np.flatnonzero(np.abs(steps / fps - given) > _TOLERANCE)[:1].tolist():
        raise InputError(
            f"{what}: with {fps:g} steps a second, {seconds[far]} s is no step: the nearest is at {steps[far] / fps:g} s, more"
            f" than {_TOLERANCE:g} s away"
        )
    if (np.diff(steps) <= 0).any():
        raise InputError(f"{what}: with {fps:g} steps a second, two of {list(seconds)} are the same step")
    if np.abs(steps).max() >= _MOST:
        raise InputError(f"{what}: with {fps:g} steps a second, {list(seconds)} are more than {_MOST:,} steps away")
    return steps.astype(np.int64)


def _strided(path: str, offsets: Int64, stride: int) -> tuple[int, ...]:
    """Return offsets of a column, in steps; an InputError where there are none, they do not ascend, or lie too far away."""
    each = offsets.tolist()
    if not each or any(one >= other for one, other in itertools.pairwise(each)):
        raise InputError(f"the offsets of {path!r}: expected integers that ascend, such as (-1, 0), found {shown(each)}")
    if max(-each[0], each[-1]) * stride >= _MOST:
        raise InputError(
            f"the offsets of {path!r}: expected less than {_MOST:,} steps, found {shown(each)} with a stride of {stride}"
        )
    return tuple(one * stride for one in each)

"""ReplayBuffer: what users hold."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.access import Access
from diskbuffer.bucket import Bucket, directory_of, place_of
from diskbuffer.checking import check
from diskbuffer.closing import Closing, refuse_within_a_call
from diskbuffer.columns.columns import Columns
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.columns.tags import tag_episodes
from diskbuffer.copies import Copies
from diskbuffer.draws import Steps
from diskbuffer.episodes import Episode, Episodes
from diskbuffer.errors import ClosedError, CorruptionError, InputError, LockedError, ReadOnlyError
from diskbuffer.gathering.reader import GatheredReader
from diskbuffer.gathering.retention import SharedRetention
from diskbuffer.index.fields import LOW
from diskbuffer.inputs import device_of, integers, seconds_of, step_names
from diskbuffer.integers import integer, integer_or_none
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.loading.loader import Loader
from diskbuffer.loading.passes import Batches, Cut, Listed, Pass
from diskbuffer.notebook import notebook
from diskbuffer.opening import join_limiter, open_place
from diskbuffer.options import Options, checked_capacity, doubts, refuse_another
from diskbuffer.reading.batch_reader import BatchReader, StoreReader
from diskbuffer.reading.batch_source import DrawnBatch, Sampling, Share
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.delivery import Transform, transform_of
from diskbuffer.reading.episode_reader import EpisodeReader
from diskbuffer.reading.ranks import ALONE, Ranks
from diskbuffer.reading.recorded_column import RecordedColumn
from diskbuffer.recording.pictures import Pictures
from diskbuffer.recording.recorder import Recorder
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.runtime import forks
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.samplers import Sampler, Uniform
from diskbuffer.samplers.epochs import EVERY_STEP
from diskbuffer.samplers.sampler import seed_sequence
from diskbuffer.samplers.uniform import n_step_form
from diskbuffer.schema import TAG, Column
from diskbuffer.store import directory
from diskbuffer.store.checking.report import Report
from diskbuffer.store.copies import marks
from diskbuffer.store.system.files import Files
from diskbuffer.transforms import Greyscale, Resize
from diskbuffer.wording import counted

if TYPE_CHECKING:
    import pandas
    import xarray
    import zarr

_SINGLE = Steps()
_TO_WRITE = "Open it with mode='a' to write; what an adapter holds has open_to_write()"
Autoreset = Literal["next_step", "same_step", "disabled"]


class ReplayBuffer:
    """Experience on disk, in a Zarr store, sampled as fast as from RAM.

    Opens the store at `path` if there is one, and creates it otherwise, which takes the columns from `env`, from the two
    spaces, or from `columns`. Nothing is ever wiped. To reopen, the path is enough; whatever else is given must be what the
    store has.

    Parameters
    ----------
    path : path-like or Bucket
        A directory: a Zarr v3 group, which any Zarr tool can read at every moment. With ``mode="r"`` also a `Bucket`, or its URL,
        ``"s3://bucket/path"``: the copy of a closed store, which is read in place.
    capacity : int, optional
        Steps to keep, of all environments together. The newest `capacity` are always there, and at most the segments being
        written on top. None keeps everything.
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3 VecEnv, optional
        Where spaces, number of environments and autoreset mode are taken from; and `frame_stack` and `padding`, where it stacks
        frames in a `FrameStackObservation`. A `VecEnv` resets in the same step: `add` needs its infos.
    observation_space, action_space : gymnasium.Space, optional
        Of one environment. Where the observation is stacked (its first axis is `frame_stack` long), single frames are stored.
    columns : mapping of str to Column, optional
        Instead of spaces: ``{"obs": Column((84, 84), "uint8"), "action": Column((), "int64")}``; nested ones as "obs/pixels",
        where other characters than those of identifiers are written as in URLs: "obs/front%20camera" is what a dict with the key
        "front camera" has.
        reward (float32, scalar), terminated and truncated are added where they are missing.
    extra : mapping of str to Column, optional
        Columns beside those, given with every step: ``{"log_prob": Column((), "float32")}``.
    transforms : mapping of str to Greyscale, Resize, or tuple of them, optional
        What pictures become before they are stored, by column: ``{"obs": (Greyscale(), Resize(84, 84))}``,
        ``{"obs/camera": Resize(96, 128)}``. `columns` are then those of pictures as they come; of a column as it is stored,
        ``Column(transform=)`` says so, too.
    n_envs : int, optional
        Environments that write side by side; 1, or that of `env`.
    frame_stack : int, optional
        Frames in an observation, along a new leading axis, as `gymnasium.wrappers.FrameStackObservation` makes them. Stored
        are single frames, so a store may be opened with another number later. That of the store or of `env`, or 1.
    padding : {"first", "zeros"}, optional
        What an episode's first stack is filled up with: copies of its first frame, or zeros.
    autoreset : {"next_step", "same_step", "disabled"}, optional
        What a vector environment does at an episode's end, `gymnasium.vector.AutoresetMode`; from `env`, else "next_step" for
        more than one environment, and "disabled" for one. In next-step mode a step that starts from the last observation of
        an ended episode, without reward or flags, is the reset, and is not recorded. In same-step mode `add` needs `info`.
        Like `frame_stack` and `padding`, it only tells how steps are given and read, and may be another when reopening.
    mode : {"a", "r", "r+", "w-"}
        As in zarr: open or create; read only, beside a living writer; must exist; must not exist.
    seed : int, optional
        For the draws.
    threads : int, optional
        Threads that decode a batch; the machine's cores, eight at most.
    segment_rows : int, optional
        Rows of a segment, a power of two: the unit of eviction. Chosen from the capacity.
    chunk_rows : int, optional
        Rows that are compressed together, where rows are compressed (those of 1 KiB and more): 1, 2, 4 or 8. More of them take
        less of the disk, and more time to pick single steps from. 4 by default, and fewer where a row has more than 64 KB.
    capacity_each : bool, optional
        Whether every environment keeps its own newest ``capacity // n_envs`` steps, for environments that add unevenly. False, or
        as the store has it.
    environment : mapping, optional
        With `columns`: what the environment is, in the form that `environment` of a buffer made with `env` or spaces has.
    metadata : mapping, optional
        Your own, of what JSON holds, 64 KiB at most, kept from the creation on: ``buffer.metadata``. When reopening, it must be
        the same, or left out.
    mark : str, optional
        A mark that was made of this store (`mark`). With ``mode="r"`` the mark is what is read. Otherwise the store goes back to
        it, and **what came later is dropped**; marks stay, those made later, too. A crash on the way is no harm: whoever opens
        the store for writing next finishes it. Buffers elsewhere that were reading keep what they had mapped, and get a
        CorruptionError that tells to open it again for anything else.
    writer : str, optional
        One of several writers, by a name of its own: letters, digits, "." "_" and "-". `path` is then a directory for all of
        them, and this one's store is below it. With ``mode="r"`` and without `writer`, all are read as one: uniformly over the
        steps of all, under names that stay. Columns that are written then (`write`, `map`, `tag`, priorities) are files beside
        the stores, which one process at a time may write. `capacity` is that of all writers together.
    limiter : SampleToInsertRatio, optional
        Have `add` and `extend` wait where too little was sampled for what was added, and `sample`, `draw` and loaders where too
        much was; in all threads and processes that open the buffer with the same one, actors and learners. See `limiter` below.

    Attributes
    ----------
    limiter : Limiter or None
        Its ``may_add`` and ``may_sample`` tell what would not wait now: a loop that does both in one thread learns while
        ``buffer.limiter.may_sample``, as nobody else could end its waits.

    Raises
    ------
    SchemaError
        The store has other columns, another capacity or number of environments than asked for, was made for another number of
        actions (``Discrete.n``), or has other metadata. Where only the environment's id, its wrappers, or the bounds of its
        spaces differ, that is a warning.
    InputError
        An argument does not fit, the store has no such mark, or it would take more files than this process can map (Linux
        allows 65,530: one for each segment of each column). The store is as it was.
    LockedError
        Another process writes to it.
    NotAStoreError, FormatError, CorruptionError
        What is at `path` is something else, or newer, or damaged.
    BucketError
        The bucket cannot be read, or there is no room in its cache; so may all calls that read rows. The buffer stays open.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", capacity=10_000, columns=columns, frame_stack=4) as buffer:
    ...     frame = np.zeros((84, 84), np.uint8)
    ...     for step in range(10):
    ...         _ = buffer.add(frame, 0, 1.0, frame, False, step == 9)
    ...     batch = buffer.sample(32)
    >>> batch["obs"].shape, batch["reward"].dtype
    (torch.Size([32, 4, 84, 84]), torch.float32)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Bucket,
        capacity: int | None = None,
        *,
        env: Any = None,
        observation_space: Any = None,
        action_space: Any = None,
        columns: Mapping[str, Column] | None = None,
        extra: Mapping[str, Column] | None = None,
        transforms: Mapping[str, Greyscale | Resize | tuple[Greyscale | Resize, ...]] | None = None,
        n_envs: int | None = None,
        frame_stack: int | None = None,
        padding: Literal["first", "zeros"] | None = None,
        autoreset: Autoreset | None = None,
        mode: Literal["a", "r", "r+", "w-"] = "a",
        seed: int | None = None,
        threads: int | None = None,
        segment_rows: int | None = None,
        chunk_rows: int | None = None,
        capacity_each: bool | None = None,
        environment: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        mark: str | None = None,
        writer: str | None = None,
        limiter: SampleToInsertRatio | None = None,
    ) -> None:
        self.limiter: Limiter | None = None
        self._process = os.getpid()
        if mode not in ("a", "r", "r+", "w-"):
            raise InputError(f"mode must be 'a', 'r', 'r+' or 'w-', found {mode!r}; there is no mode that wipes a store")
        threads = integer_or_none("threads", threads)
        seeds = seed_sequence(seed).generate_state(2, np.uint64).tolist()
        self._samplers = {"sample": Uniform(seeds[0]), "loader": Uniform(seeds[1])}
        for sampler in self._samplers.values():
            sampler.seeded = seed is not None
        self._sampled: tuple[int, Sampling] | None = None  # how many `sample` was asked for last, with our own sampler
        self._place, self._writer = place_of(path), writer
        wanted = Options(
            capacity=capacity,
            env=env,
            observation_space=observation_space,
            action_space=action_space,
            columns=columns,
            extra=extra,
            transforms=transforms,
            n_envs=n_envs,
            frame_stack=frame_stack,
            padding=padding,
            autoreset=autoreset,
            segment_rows=segment_rows,
            chunk_rows=chunk_rows,
            capacity_each=capacity_each,
            environment=environment,
            metadata=metadata,
        ).checked()
        opened = open_place(self._place, wanted, mode, mark, writer)
        self._place, self._store, self._gathered = opened.place, opened.store, opened.gathered
        self.path = cast(Path, self._place)  # which a bucket takes after: it is shown, and joined with names
        self._closing = Closing(self._store)
        try:
            refuse_another(self.path, self._store.layout, opened.wanted)
            doubt = doubts(self.path, self._store.layout, opened.wanted)
            if doubt is not None:
                warnings.warn(doubt, UserWarning, stacklevel=2)
            layout = dataclasses.replace(self._store.layout, **opened.wanted.views())
            self.frame_stack = layout.frame_stack
            kind = StoreReader if self._gathered is None else GatheredReader
            self._reader: BatchReader = kind(self._store, layout.frame_stack, layout.padding == "zeros", threads)
            self._closing.reader, self._closing.gathered = self._reader, self._gathered
            self._derived = DerivedColumns(self._store, self._reader)
            if limiter is not None:
                self.limiter = join_limiter(opened, limiter, mode, mark, writer, self._reader.index)
                self._closing.limiter = self.limiter
            self._log: StreamLog | None = None
            if mode != "r":
                shared = None if writer is None else SharedRetention(self._of_all_writers, writer, self._reader.index)
                self._log = self._closing.log = StreamLog(self._store, self._reader.index, shared)
                self._recorder = Recorder(layout, self._log, self._reader.index, self._reader.newest)
        except BaseException as error:
            marks.tell_how_to_make_room(error, self._store.files)
            self._closing.abandon()
            raise
        self._marking, self._building = forks.new_lock(), forks.new_lock()
        self._how = {"frame_stack": layout.frame_stack, "padding": layout.padding, "autoreset": layout.autoreset}
        self._how |= {"threads": threads, "mode": "r", "mark": mark} if mode == "r" else {"threads": threads, "mode": "r+"}
        self._how |= {} if writer is not None and mode == "r" else {"limiter": limiter}
        self._closing.close_when_dropped(self)

    # Writing

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        *,
        info: Any = None,
        new_episode: Any = None,
        **extra: Any,
    ) -> int:
        """Add one step of every environment; when this returns, a kill of the process does not lose it.

        A power loss may, until the next `flush`, or until its segment is sealed in the background.

        The episode goes on if `obs` has the values of the ``next_obs`` of the step before. Another one starts an episode,
        and one that had not ended is cut off; `stats` counts these, and where most steps do so, a warning tells. With several
        environments everything has a leading axis of `n_envs`; with one, that axis may be left out.

        Parameters
        ----------
        obs, next_obs : array-like, or nested dict of them
            Single frames (preferred), or the rolling stacks of `frame_stack` frames that a wrapper makes, from any step of an
            episode on. At an episode's end, `next_obs` is its last observation, not the first of the next. Both are copied. An
            environment that overwrites the array which it returned last has changed `obs` by then: give a copy of it, or say
            ``new_episode=False``.
        action, reward, terminated, truncated : array-like
        info : dict or list of dict, optional
            What ``step`` returned; needed in same-step autoreset mode, for ``final_obs``, or a `VecEnv`'s
            ``terminal_observation``.
        new_episode : bool or (n_envs,) bool, optional
            Whether the step starts an episode, where the caller knows; None compares. With False it goes on from the step before,
            whatever `obs` is, unless that ended its episode, or `cut_off` was called since. One observation is stored between two
            steps: the ``next_obs`` of the first, which is on the disk by then, and not the `obs` of the second. The same holds
            for the earlier frames of a stack; later steps are compared with the stack that is stored.
        **extra : array-like
            A value for each other column.

        Returns
        -------
        int
            Steps added: the number of environments, less those that were just reset.

        Raises
        ------
        InputError
            A shape, dtype, value or name does not fit. Nothing was added.
        StackError
            Of stacked observations, `next_obs` is not `obs` moved on by one frame. Nothing was added.
        OSError
            The disk is full or fails. Nothing was added, what was added before is kept; try again when there is room.

        Notes
        -----
        About 9 us for an 84x84 frame, compression included, which comes in batches: every 128 rows or so, some 0.2 ms.
        """
        if self.limiter is not None:
            self._wait_to_add(self.limiter)
        with self._store.lock:
            added = self._writing().add(obs, next_obs, (action, reward, terminated, truncated), extra, info, new_episode)
            if self.limiter is not None:
                self._note_added(self.limiter)
            return added

    def extend(
        self,
        obs: Any = None,
        action: Any = None,
        reward: Any = None,
        next_obs: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        *,
        env: int | None = None,
        new_episode: Any = None,
        **extra: Any,
    ) -> int:
        """Add arrays of steps, as `add` would one by one, at the speed of arrays.

        Parameters
        ----------
        obs : (n, ...) or (n + 1, ...), or (n, n_envs, ...) or (n + 1, n_envs, ...)
            Observations before the steps: of one environment, or of all of them. Without `next_obs`, a trajectory: one more than
            there are steps.
        next_obs : as `obs`, optional
            Observations after the steps. With it, the arrays may hold many episodes.
        action, reward : (n, ...) or (n, n_envs, ...)
        terminated, truncated : (n,) or (n, n_envs), optional
            False where they are missing; an episode that neither ends nor goes on in the next call is cut off. Without
            `next_obs`, only the last step may end one.
        env : int, optional
            The one environment whose steps they are. Where there are several, None is for steps of all of them.
        new_episode : bool, or (n,) bool, or (n, n_envs) bool, optional
            As in `add`, for each step; None compares. A single one is about the first: all others go on from the one before,
            unless that ended its episode.
        **extra : (n, ...) or (n, n_envs, ...)

        Returns
        -------
        int
            Steps added.

        Raises
        ------
        InputError, StackError
            As in `add`. Nothing was added.
        OSError
            The disk is full or fails. ``len(buffer)`` tells what was added before that.
        """
        if self.limiter is not None:
            self._wait_to_add(self.limiter)
        with self._store.lock:
            recorder = self._writing()
            stream = None if env is None else integer("env", env, 0, self.n_envs - 1)
            values = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated, **extra}
            added = recorder.extend(values, obs, next_obs, stream, new_episode)
            if self.limiter is not None:
                self._note_added(self.limiter)
            return added

    def _wait_to_add(self, limiter: Limiter) -> None:
        """Wait where a limiter has it so, but not for an error."""
        self._writing()
        limiter.wait_to_add()

    def _note_added(self, limiter: Limiter) -> None:
        assert self._log is not None
        limiter.note_added(self._log.added)

    def transformed(self, obs: Any) -> Any:
        """Return observations as they are stored: what a policy that learns from batches is to be given when it acts.

        Parameters
        ----------
        obs : array-like, or nested dict of them
            With any leading axes. Columns without ``Column(transform=)`` stay as they are.

        Returns
        -------
        array, or nested dict of them
            Pictures as uint8, (..., height, width) or (..., height, width, channels).

        Raises
        ------
        InputError
            A picture is none that is transformed to the column's shape.
        """
        return Pictures(self._store.layout.schema).transformed(obs)

    def cut_off(self, envs: Any = slice(None)) -> None:
        """Tell that environments were reset without an end of their episodes, though the next observation may look the same.

        Parameters
        ----------
        envs : int, list of int or slice
            Which; all of them by default.
        """
        with self._store.lock:
            recorder = self._writing()
            which = np.arange(self.n_envs)[envs] if isinstance(envs, slice) else np.atleast_1d(integers("envs", envs, (0, 1)))
            if (which < 0).any() or (which >= self.n_envs).any():
                raise InputError(f"envs must be among 0 to {self.n_envs - 1}, found {envs!r}")
            recorder.cut_off(which.tolist())

    def clear(self) -> None:
        """Drop every step, for good, and keep all else: columns, capacity, metadata, marks.

        For on-policy use, after each rollout. All steps or none, also where a kill or a power loss comes in between. Episodes
        that run are cut off, and their next step starts another; names of steps go on counting. Takes some milliseconds, as it
        brings the store's description to the disk. Batches that you have stay as they are. A loader that runs draws anew what was
        drawn ahead, and raises an EmptyBufferError as long as there is nothing.

        Raises
        ------
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        OSError
            The disk is full or fails. Every step is there still.
        """
        self._must_write("cleared")
        with self._building, self._store.lock, Uninterrupted():
            self._writing().clear()

    def resize(self, capacity: int | None) -> None:
        """Change the capacity, for good; what is too old for a smaller one is dropped at once.

        Segments keep their size, which was chosen by the first capacity: of a much smaller one, more is kept than is asked for.

        Parameters
        ----------
        capacity : int or None
            As of `ReplayBuffer`. None keeps everything from now on.

        Raises
        ------
        InputError
            That is no capacity for this store.
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        OSError
            The disk is full or fails. The capacity is what it was.
        """
        if self._writer is not None:
            raise InputError(f"{self._of_all_writers}: all writers share a capacity, which stays as it is")
        wanted = checked_capacity(capacity, self._store.layout, self.frame_stack)
        self._must_write("resized")
        with self._building, self._store.lock, Uninterrupted():
            self._open_log().resize(wanted)

    def flush(self, *, recompress: bool = False) -> None:
        """Bring every step to the disk, so that it survives a power loss or a crash of the kernel, too.

        Of a learner of several writers' stores, what was written to columns; each writer brings its own steps to the disk. Takes
        some tens of syncs of files, so a few milliseconds on an SSD, and more after much was added; other threads add and sample
        meanwhile. Not needed against a kill of the process.

        Parameters
        ----------
        recompress : bool
            Whether to wait until every complete segment is recompressed, first, which else happens in the background, in its
            own time.

        Raises
        ------
        OSError
            The disk is full or fails. Nothing is lost that was there; what was synced before still counts, and segments that are
            left stay as they are, and are tried again later.
        """
        refuse_within_a_call(self._store, "flush")
        if recompress:
            with self._store.lock:
                log = self._open_log()
                log.pack()
            log.wait_for_sealing()
        if self._gathered is not None:
            self._writing_columns()
            self._gathered.sync()
        else:
            with self._store.lock:
                log = self._open_log()
            log.sync()
        if self.limiter is not None:
            self.limiter.sync()

    def _writing(self) -> Recorder:
        if self._closing.closed or self._log is None or not self._store.writable:
            self._refuse_to_write()
        return self._recorder

    def _refuse_to_write(self) -> NoReturn:
        self._check_open()
        if self._gathered is not None:
            raise ReadOnlyError(f"{self.path} has the stores of several writers; open one with writer=NAME to add steps to it")
        if self._log is None:
            raise ReadOnlyError(f"{self.path} was opened with mode='r'", advice=_TO_WRITE)
        raise LockedError(
            f"{self.path} is being written to by process {self._process}, of which this one is a fork; write there, or open "
            "it here with mode='r'"
        )

    def _writing_columns(self) -> None:
        """Refuse to write columns where that is not for this process to do."""
        if self._gathered is not None:
            with self._store.lock:
                self._check_open()
                if self._gathered.begin_writing():  # another learner may have written to steps that are new to this one
                    try:
                        self._reader.refresh()
                    except BaseException:
                        self._gathered.columns.end_writing()
                        raise
        else:
            self._writing()

    def _open_log(self) -> StreamLog:
        self._writing()
        assert self._log is not None
        return self._log

    # Reading

    def sample(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
    ) -> Batch:
        """Draw steps and return them.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            Which steps; a `Uniform` of the buffer's own. `Slices` draws sequences.
        device : torch.device or str, optional
            Where tensors go. `loader` does so while the GPU computes.
        transform : callable, optional
            ``transform(batch)`` is returned instead. It gets the batch in RAM, and may write into it, but for what ``obs`` and
            ``next_obs`` share. Tensors and arrays of numbers, in dicts, lists and tuples, are sent to `device`, if it is given
            and not the CPU. If it raises, the batch was not delivered: the next call has the same steps.

        Returns
        -------
        dict of str to torch.Tensor
            ``obs`` and ``next_obs``, (batch_size, frame_stack, ...) or (batch_size, ...) where frame_stack is 1, nested for
            dict observations; ``action``, ``reward``, ``terminated``, ``truncated`` and extra columns; ``steps``, int64, which
            name the steps for good: (batch_size,), of sequences (batch_size, length), -1 where these are padded.
            ``obs`` and ``next_obs`` are views of the same frames: clone before writing into one.

        Raises
        ------
        EmptyBufferError
            There is no complete step.
        CorruptionError
            A chunk is damaged on the disk; it is named.
        """
        self._check_open()
        size = integer("batch_size", batch_size)
        if sampler is not None:
            return self._sampling(self._sampler(sampler, "sample"), size).sample(transform_of(transform), device_of(device))
        known = self._sampled  # by another thread, this may be another the next moment
        if known is None or known[0] != size:  # most ask for as many again and again
            known = self._sampled = size, self._sampling(self._samplers["sample"], size, while_there(self._check_open))
        return known[1].sample(transform_of(transform), device_of(device))

    def draw(self, batch_size: int, sampler: Sampler | None = None) -> dict[str, npt.NDArray[Any]]:
        """Draw as `sample` does, and read nothing.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            As in `sample`, of which it takes a batch; the draw's own state goes on in the same way.

        Returns
        -------
        dict of str to array
            ``steps``, (batch_size,) int64, for `at`: of sequences, each one's first. What else the sampler tells of each, such as
            ``weights``.
        """
        self._check_open()
        sampler, size = self._sampler(sampler, "sample"), integer("batch_size", batch_size)
        return self._sampling(sampler, size).draw()

    def _sampling(
        self,
        sampler: Sampler,
        size: int,
        check: Callable[[], None] | None = None,
        ranks: Ranks = ALONE,
        refresh_every: float = math.inf,
    ) -> Sampling:
        share = Share(self._reader, sampler, size * ranks.world_size, self.limiter)
        return Sampling([share], self._reader.pool, check or self._check_open, ranks=ranks, refresh_every=refresh_every)

    def _sampler(self, given: Sampler | None, own: str, ranks: Ranks = ALONE) -> Sampler:
        if given is not None and not isinstance(given, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {given!r}")
        sampler = self._samplers[own] if given is None else given
        ranks.check(sampler)
        if given is not None:
            self._attach(given)
        return sampler

    def _attach(self, sampler: Sampler) -> BatchReader:
        """Have a sampler draw from this buffer; return where to read what it draws."""
        self._check_open()
        with self._store.lock:
            sampler.attach(self._reader.index, self._open_column)
        return self._reader

    def _open_column(self, name: str, column: Column | None) -> Any:
        if name == TAG and column is None:
            return self._reader
        if column is None:
            return RecordedColumn(self._store, self._reader, name, while_there(self._check_open))
        self._writing_columns()
        return self._derived.open(name, column, while_there(self._writing_columns))

    def at(
        self,
        steps: Any,
        length: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        copy: bool = False,
    ) -> Batch:
        """Return given steps, as `sample` does.

        Parameters
        ----------
        steps : (n,) integers
            As in a batch's ``steps``, or from `steps`.
        length : int, optional
            Sequences of so many steps, from each of `steps` on, within an episode: all columns get an axis of time after
            the first.
        columns : sequence of str, optional
            These alone are read, such as ``["reward"]``; parts of observations are ``"obs/pixels"``, and come with ``next_obs``.
        n_step, gamma
            As in `Uniform`; of single steps, with all columns.
        copy : bool
            Whether ``obs`` and ``next_obs`` have memory of their own, which may be written to; of single steps, with all columns.
            If not, stacks of frames share it: that takes a third less time.

        Raises
        ------
        InputError
            There is no such step, or not any more, or no such column; or the arguments do not go together.
        """
        self._check_open()
        size = integer_or_none("length", length)
        if n_step.__class__ is int and n_step == 1 and not copy:  # most ask for that, and looking at gamma takes time
            return self._reader.at(steps, _SINGLE if size is None else Steps(size), _paths(columns))
        if size is not None or columns is not None:
            raise InputError("n_step= and copy= go with single steps, and with all columns: leave out length= and columns=")
        return self._reader.at(steps, n_step_form(n_step, gamma, apart=copy))

    def steps(self, ages: Any = None, envs: Any = 0) -> npt.NDArray[np.int64]:
        """Return the ids of all steps that can be sampled, (len(buffer),): environment after environment, oldest first.

        These are the ids in a batch's ``steps``, which `at` and others take. They stay what they are, so they do not begin at 0
        once steps were evicted, and have gaps where episodes end.

        Parameters
        ----------
        ages : (n,) integers, optional
            Of these steps alone, (n,): how many steps of its environment came after each, 0 for the newest. That is how other
            libraries' ring buffers number them, from the newest backwards.
        envs : int or (n,) integers
            With `ages`: whose.

        Raises
        ------
        InputError
            There is no step that old, or no such environment.
        """
        self._check_open()
        return self._reader.every_name() if ages is None else self._reader.recent_names(ages, envs)

    def episode(self, which: int | Episode, *, columns: Sequence[str] | None = None) -> Batch:
        """Return one episode: its T steps, and its T + 1 observations.

        Parameters
        ----------
        which : int or Episode
            One of `episodes`, or its id: that of the step it began with, ``buffer.episodes.id``.
        columns : sequence of str, optional
            As in `at`: these alone are read.

        Returns
        -------
        dict of str to torch.Tensor
            ``obs``, (T + 1, ...), or (T + 1, frame_stack, ...), the last of which is the final observation; nested for dict
            observations. All else as in `sample`, (T, ...). Of an episode whose first steps were evicted, those that are left.

        Raises
        ------
        InputError
            There is no such episode, or it was evicted.
        """
        self._check_open()
        episode = which if isinstance(which, Episode) else self.episodes.find(which)
        return self._reader.episode(episode, _paths(columns))

    def iterate_episodes(self, episodes: Episodes | None = None, *, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield one episode after the other, as `episode` returns them. Those that are evicted meanwhile are left out.

        Parameters
        ----------
        episodes : Episodes, optional
            Some of `episodes`, such as ``buffer.episodes[buffer.episodes.returns > 10]``; all of them by default.
        columns : sequence of str, optional
            As in `at`: these alone are read.
        """
        self._check_open()
        return self._iterate(self._some(episodes), columns)

    def _iterate(self, episodes: Episodes, columns: Sequence[str] | None) -> Iterator[Batch]:
        for episode in episodes:
            if self.remaining([episode.start])[0] < episode.length:
                continue
            try:
                batch = self.episode(episode, columns=columns)
            except InputError:
                if self.remaining([episode.start])[0] < episode.length:
                    continue  # another thread added since
                raise
            yield batch

    def remaining(self, steps: Any) -> npt.NDArray[np.int64]:
        """Count the steps of its episode that there are from each step on, itself among them; of one that runs, so far.

        Parameters
        ----------
        steps : (n,) integers
            As in a batch's ``steps``.

        Returns
        -------
        (n,) int64
            0 where a step was evicted, or never was one.
        """
        self._check_open()
        return self._reader.remaining(steps)

    def elapsed(self, steps: Any) -> npt.NDArray[np.int64]:
        """Count the steps of its episode that came before each step, evicted ones, too; -1 where a step itself was evicted."""
        self._check_open()
        return self._reader.elapsed(steps)

    def loader(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
        threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        refresh_every: float | None = None,
    ) -> Loader[DrawnBatch]:
        """Return an endless iterable of batches that threads fill ahead.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            As in `sample`; where it is missing, another `Uniform` of the buffer's own.
        device : torch.device or str, optional
            Where tensors go: to an accelerator from pinned memory, on a stream of its own.
        transform : callable, optional
            As in `sample`, called in the loader's threads, in several at a time: augmentation, say. What it raises, the learner
            gets in the batch's place.
        prefetch : int
            How many batches may be ahead.
        threads : int, optional
            How many threads fill batches, each one of its own; the machine's cores, `prefetch` at most.
        rank, world_size : int, optional
            Which of how many learners this is: from torch.distributed's default process group, where one is initialised. Every
            batch is drawn for all of them, ``world_size * batch_size`` samples, and each reads its own: number `rank`, and
            every `world_size`-th after it; a draw is cheap, and nothing is sent between ranks. So all must draw with the same
            seed, the sampler's or else the buffer's, and see the same steps: those of a store that nobody writes to, or of
            readers that all call `refresh` between the same two batches, while the writer waits. (Otherwise each still draws
            as the sampler says from what it sees, and their shares are of different draws.) The sampler's state is the same in
            all ranks; a run may be resumed with another number of them, if all together have as large a batch.
            ``rank=0, world_size=1`` is a learner that draws for itself.
        refresh_every : float, optional
            Seconds after which a buffer that is open for reading sees what a writer in another process has added and evicted, as
            `refresh` does: in the learner's thread, before the next batch is drawn. 0 for every batch; None, the default, for
            never. Which steps a batch has depends on the time then, and several ranks see different ones. Errors of `refresh`
            end the loop. Does nothing where this buffer is the one that is open for writing.

        Raises
        ------
        InputError
            There are several ranks, and neither the sampler nor the buffer was given a seed; or the sampler is `Prioritized`,
            whose draws depend on what each rank has learned.
        """
        self._check_open()
        ranks, every = Ranks.of(rank, world_size), seconds_of("refresh_every", refresh_every)
        sampler = self._sampler(sampler, "loader", ranks)
        size, ahead = integer("batch_size", batch_size), integer("prefetch", prefetch)

        def source() -> Sampling:
            return self._sampling(sampler, size, ranks=ranks, refresh_every=every)

        return Loader(source, device, ahead, self._threads(threads), transform)

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        merge_last: bool = True,
        *,
        steps: Any = None,
        sampler: Sampler | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
        threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Batches:
        """Return an iterable over every step that is there when a loop begins, once, through the same threads as `loader`.

        What is evicted while the loop runs may be left out; everything else comes exactly once. ``len()`` tells how many batches
        there are. The shuffled order is computed, not stored. The iterable's `state_dict` tells how far its newest loop has
        come; after its `load_state_dict`, the next loop goes on from there.

        Parameters
        ----------
        batch_size : int
        shuffle : bool
            If not, steps come in order: environment after environment, oldest first.
        merge_last : bool
            Whether the last batch takes the rest, and has up to twice as many steps (as Tianshou has it), or is a small one.
        steps : (n,) integers, optional
            These, as in a batch's ``steps``, in this order, in place of all.
        sampler : Sampler, optional
            What a sample is, and of which episodes: `Slices`, of which every start comes once, or `Uniform`. How it draws is not
            asked, and its state stays as it is.
        seed : int, optional
            Of the shuffled order; a new one for every loop where it is missing.
        device, transform, prefetch, threads
            As in `loader`.
        rank, world_size : int, optional
            As in `loader`: each batch is shared out, and every step comes in one rank only. All ranks have as many batches,
            and sizes that differ by one at most; where the last batch would have fewer samples than there are ranks, it goes
            with the one before. Only where there are fewer samples than ranks in all, some have none.

        Raises
        ------
        InputError
            There are several ranks, and ``shuffle=True`` without `seed`.
        """
        self._check_open()
        ranks = Ranks.of(rank, world_size)
        if ranks.world_size > 1 and shuffle and seed is None:
            raise InputError(
                f"with {ranks.world_size} ranks all must shuffle in the same way: give seed=, another one each epoch"
            )
        size, ahead = integer("batch_size", batch_size), integer("prefetch", prefetch)
        seed_sequence(seed)
        if steps is not None and shuffle:
            raise InputError("steps come in the order in which they are given; shuffle them, or leave shuffle= out")
        if steps is not None and sampler is not None:
            raise InputError("steps= and sampler= both tell what comes; give one of them")
        samples = EVERY_STEP if sampler is None else self._sampler(sampler, "sample").samples()
        named = None if steps is None else step_names(steps)

        cut = Cut(size, merge_last, ranks)

        def source(state: Mapping[str, Any] | None) -> Pass | Listed:
            if named is not None:
                return Listed(self._reader, named, cut, self._check_open, state)
            entropy = int(seed_sequence(seed).entropy)  # type: ignore[arg-type]
            return Pass(self._reader, cut, shuffle, entropy, self._check_open, state, samples=samples)

        return Batches(source, device, ahead, self._threads(threads), transform)

    def _threads(self, threads: int | None) -> int:
        return self._reader.gatherer.threads if threads is None else integer("threads", threads)

    # Columns written back

    def tag(self, tag: str | None, steps: Any) -> int:
        """Tag the episodes that steps lie in, in place of the tag that they have; None takes it away.

        ``buffer.episodes.tag`` shows it, and the column ``tag`` has its number: ``buffer.tags[number - 1]``, 0 where there is
        none.

        Parameters
        ----------
        tag : str or None
            "demonstration", "task 3", ...; 65,535 different ones at most.
        steps : (n,) or (n, length) integers
            One or more of each episode, such as ``buffer.episodes.start``. The episodes must be over.

        Returns
        -------
        int
            How many episodes were tagged.
        """
        with self._store.lock:
            self._writing_columns()
            return tag_episodes(self._derived, tag, steps)

    def refresh(self) -> None:
        """See what a writer in another process has added and evicted since; needed with ``mode="r"`` only.

        Nothing is done where this buffer is the one that is open for writing. `loader` does it by itself with ``refresh_every=``.

        Raises
        ------
        CorruptionError
            The store was moved, removed or replaced, or went back to a mark: open it again.
        EvictedError
            For ten seconds a writer evicted steps faster than this reader could see which are there.

        Notes
        -----
        What is new is read, whatever is there: under 1 ms for 1,000 steps, in a store of a hundred thousand as of hundreds of
        millions. All of it is read anew after a recovery from a power loss, or a repair: 1 ms for 100,000 steps. Of several
        writers' stores, those that have not changed cost 5 us each.
        """
        self._check_open()
        self._reader.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the buffer's own draws, to be saved with the model: it counts batches that were delivered."""
        return {name: sampler.state_dict() for name, sampler in self._samplers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the draws of a state that `state_dict` returned."""
        if not isinstance(state, Mapping) or set(state) != set(self._samplers):
            raise InputError(f"a buffer's state must have {sorted(self._samplers)}, found {state!r}")
        loaded = {name: Uniform(0) for name in self._samplers}
        for name, sampler in loaded.items():
            sampler.load_state_dict(state[name])
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(loaded[name].state_dict())

    # Copies

    def _build(self, files: Files, number: int = 0) -> None:
        with self._building:  # no column is removed meanwhile
            self._build_alone(files, number)

    def _build_alone(self, files: Files, number: int) -> None:
        self._open_log().copy_to(files, number)

    @property
    def _of_all_writers(self) -> Path:
        """The directory that has the stores of all writers, of one of which this is the store."""
        return directory_of(self._place, "nobody writes").parent

    def _must_write_columns(self, what: str) -> None:
        if self._gathered is None:
            self._must_write(what)

    def _must_write(self, what: str) -> None:
        self._check_open()
        if self._log is None and self._gathered is None:
            raise ReadOnlyError(
                f"{self.path} was opened with mode='r', and can be {what} by its writer only, which can pause it; do so there",
                advice=_TO_WRITE,
            )
        self._writing()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to open it again, and the state of its draws; see `reopen`."""
        self._check_open()
        path, how = self.path, self._how
        if self._writer is not None and how["mode"] != "r":
            path, how = self._of_all_writers, how | {"writer": self._writer}
        return reopen, (type(self), path, how, self.state_dict())

    # Looking

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        self._check_open()
        return len(self._reader.index)

    @property
    def n_envs(self) -> int:
        """Environments that write side by side."""
        return self._store.layout.n_envs

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return how many steps each environment has, and has ever had: (n_envs,) each."""
        self._check_open()
        there, ever = self._reader.counts()
        return there[: self.n_envs], ever[: self.n_envs]

    @property
    def capacity(self) -> int | None:
        """Steps that are kept at least, once as many were added; None if all are."""
        return self._store.layout.capacity

    @property
    def environment(self) -> dict[str, Any] | None:
        """What the environment told of itself when the store was created; None where nothing is known.

        As far as it told: ``id``, ``observation_space`` and ``action_space`` (``kind``, ``n``, ``low``, ``high``, ...),
        ``wrappers`` (the outermost first), ``n_envs``, ``autoreset``, ``seed``, and ``versions`` of diskbuffer, Gymnasium and its
        own package.
        """
        found = self._store.layout.environment
        return None if found is None else copy.deepcopy(dict(found))

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What was given as ``metadata=`` when the store was created; None where nothing was."""
        found = self._store.layout.metadata
        return None if found is None else copy.deepcopy(dict(found))

    @property
    def columns(self) -> Columns:
        """The columns, a mapping by path; and what writes others, from what the steps have."""
        return Columns(self._derived, self._access, self._building, self.flush, self._threads)

    @property
    def copies(self) -> Copies:
        """Snapshots and marks of the buffer."""
        writes_here = self._log is not None and self._process == os.getpid()
        copy = self._build if writes_here else None
        return Copies(self._place, self._store, self._gathered, self._access, self._marking, copy, _recover)

    @property
    def _access(self) -> Access:
        return Access(self._check_open, self._writing_columns, self._must_write_columns)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that there are; the column ``tag`` has their numbers, from 1 on."""
        return self._store.layout.tags

    @property
    def episodes(self) -> Episodes:
        """The episodes, as columns. Reads two flags of each: milliseconds for thousands."""
        self._check_open()
        return Episodes.of(self._reader.episodes(), EpisodeReader(self._reader))

    def to_pandas(self, columns: Sequence[str] | None = None, episodes: Episodes | None = None) -> pandas.DataFrame:
        """Return steps as a table, a row each, by name: episode (its id), stream, t (the step's number in its episode), columns.

        ``buffer.episodes.to_pandas()`` is the table of episodes.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns' paths; those with 32 numbers a step at most by default. Arrays are taken apart: "obs[0]", "obs[1]", ...
        episodes : Episodes, optional
            Some of `episodes`; all of them by default.

        Raises
        ------
        InputError
            There is no such column, it is too large for a table, or an episode was evicted since.
        MissingPackageError
            pandas is not installed.

        Notes
        -----
        Reads all of it into memory.
        """
        self._check_open()
        found: pandas.DataFrame = notebook("pandas_tables").of_steps(EpisodeReader(self._reader), self._some(episodes), columns)
        return found

    def to_xarray(self, episodes: Episodes | None = None, *, dims: Mapping[str, Sequence[str]] | None = None) -> xarray.Dataset:
        """Return steps as a data set of xarray that reads what is indexed, and nothing else.

        Its first dimension is ``step``, whose index has the names of the steps: ``.sel(step=buffer.episodes[3].steps)``. There is
        a variable for each column, by path, and ``next_obs`` beside ``obs``; the coordinates ``episode``, ``stream``, ``t`` (the
        step's number in its episode), ``ending`` and ``tag`` tell of each step what they tell of its episode. A column that has
        one of these names gets an underscore after it.

        Parameters
        ----------
        episodes : Episodes, optional
            Some of `episodes`; all of them by default.
        dims : mapping of str to sequence of str, optional
            What the axes of a column are called: ``{"obs/joints": ("arm", "joint")}``. By default those of pictures are "height",
            "width" and "channel", with the column's path before it where sizes differ; "frame" where the buffer stacks; and those
            of others the path and a number.

        Raises
        ------
        InputError
            `dims` does not fit. Later, where something is read: a step was evicted since.
        MissingPackageError
            xarray is not installed.

        Notes
        -----
        Takes 8 bytes of memory a step, for the index. What was evicted is no longer there: make another data set then.
        """
        self._check_open()
        found: xarray.Dataset = notebook("xarray_dataset").of_steps(EpisodeReader(self._reader), self._some(episodes), dims or {})
        return found

    def _some(self, episodes: Episodes | None) -> Episodes:
        if episodes is not None and not isinstance(episodes, Episodes):
            raise InputError(f"expected some of buffer.episodes, such as buffer.episodes[:10], found {type(episodes).__name__}")
        return self.episodes if episodes is None else episodes

    def _repr_html_(self) -> str | None:
        if self._closing.closed:
            return None  # as its `repr` says
        found: str = notebook("buffer").html(EpisodeReader(self._reader), self.stats(), self.columns.derived, self.episodes)
        return found

    @property
    def zarr(self) -> zarr.Group:
        """The store as a read-only zarr group. The newest rows may be in ``_tail`` only, until `close`."""
        import zarr

        root = directory_of(self._place, "this is not offered")
        directory.refuse_all_links(self._store.files)  # which zarr would follow
        return zarr.open_group(str(root), mode="r")

    def check(self, progress: bool = True) -> Report:
        """Verify every structure and every checksum of the store, and decode every chunk; see `diskbuffer.check`.

        Reads all of it: some 15 s for a million 84x84 frames. Of a store that is being written to, here or elsewhere, it is
        what is sealed (``flush(recompress=True)`` first, to have nearly all of it). To repair, close the buffer and call
        ``diskbuffer.check(path, repair=True)``.

        Raises
        ------
        CorruptionError
            The store was moved, removed or replaced since it was opened.
        """
        self._check_open()
        root = directory_of(self._place, "stores are not checked")
        self._check_in_place()
        report = check(root, progress=progress)
        self._check_in_place()
        return report

    def _check_in_place(self) -> None:
        """Raise a CorruptionError where another store may be at the path of the one that is open."""
        files = self._store.files if self._gathered is None else self._gathered.all_files
        if not files.outermost().is_in_place():
            raise CorruptionError(f"{self.path} was moved, removed or replaced since it was opened; open it again")

    def stats(self) -> dict[str, Any]:
        """Return figures on the buffer; walks the store's files for ``disk_bytes``.

        ``steps`` (to sample), ``added`` (ever), ``capacity``, ``episodes``, ``n_envs``, ``segments``, ``unsealed`` (complete
        segments that wait for being recompressed), ``seal_error``, ``disk_bytes`` (allocated, marks included, what they share
        once), ``raw_bytes`` (of the rows, uncompressed), ``index_bytes`` (of RAM), ``decoder``, ``threads``; and ``cut_off``,
        episodes that ended without a flag since the buffer was opened. Of a store in a bucket, ``bucket`` tells of ``requests``,
        ``bytes_received``, and ``cache_bytes``, those that the cache's directory takes.

        ``compression`` tells, of each column that is compressed, what this buffer did when it sealed segments: ``codec`` (the
        column's own, or what was chosen from its data, None before that), ``ratio`` (bytes on disk of each byte), ``us_per_row``.

        ``limiter``, where there is one, tells of all processes together: ``asked``, the ratio that is asked for, and ``ratio``,
        that so far, of ``samples`` to ``inserts``, those that count; ``surplus``, how many samples are due; ``error_buffer``;
        ``added``, steps ever, and ``min_size``, how many there must be; ``may_add`` and ``may_sample``; ``waiting_to_add``, for
        how many seconds writers have waited, by name, and ``waiting_to_sample``, a learner, or None; ``since_added`` and
        ``since_sampled``, seconds, or None; ``actors_alive`` and ``learners_alive``, whether there are any beside the thread that
        asks. And of this buffer alone ``waited``, seconds that its calls have waited in all.
        """
        self._check_open()
        with self._store.lock:
            index, layout = self._reader.index, self._store.layout
            log = None if self._process != os.getpid() else self._log
            rows = int((index.heads + 1 - index.table[:, LOW]).sum())
            figures = {
                "steps": len(self),
                "added": index.added(),
                "capacity": layout.capacity,
                "episodes": index.count_episodes(),
                "cut_off": 0 if self._log is None else self._recorder.cut_offs.total,
                "n_envs": layout.n_envs,
                "segments": sum(len(index.slots(stream)) for stream in range(layout.streams)),
                "unsealed": 0 if log is None else log.unsealed,
                "seal_error": None if log is None or log.seal_error is None else str(log.seal_error),
                "raw_bytes": rows * sum(column.row_bytes for column in layout.schema.columns.values()),
                "index_bytes": index.nbytes,
                "decoder": "compiled, LZ4",
                "threads": self._reader.gatherer.threads,
                "compression": {} if log is None else log.sealer.figures(),
            }
        if self.limiter is not None:
            figures["limiter"] = self.limiter.state()
        elsewhere = {"bucket": self._store.files.figures()} if isinstance(self._place, Bucket) else {}
        return figures | {"disk_bytes": self._store.disk_bytes()} | elsewhere

    def __repr__(self) -> str:
        if self._closing.closed:
            return f"<ReplayBuffer {self.path}, closed>"
        index = self._reader.index
        episodes = index.count_episodes()
        kept = "all" if self.capacity is None else f"{self.capacity:,}"
        return f"<ReplayBuffer {self.path}: {len(self):,} of {kept} steps, {counted(episodes, 'episode')}, {self.n_envs} env>"

    # Closing

    def close(self) -> None:
        """Write the newest rows to their columns, sync everything, and let another writer in. Twice is fine.

        A buffer that is never closed, as its process dies, loses nothing, but opening it takes a little longer. One that nothing
        refers to any more is closed when it is collected as garbage. Files are unmapped at once, those that a batch is just
        gathered from once it is there.

        In a fork of the process that opened the buffer, this only releases the child's copy.
        """
        self._closing.close()

    def _check_open(self) -> None:
        if self._closing.closed:
            raise ClosedError(f"{self.path} was closed; open it again with ReplayBuffer({str(self.path)!r})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _paths(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns that alone are to be read, each once."""
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
    return None if columns is None else tuple(dict.fromkeys(columns))


def _recover(root: Path) -> None:
    """Have a copy of a store that somebody writes to be one that was closed."""
    ReplayBuffer(root, mode="r+").close()


def while_there(method: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that calls a buffer's method, and does not keep the buffer alive: samplers outlive it."""
    kept = weakref.WeakMethod(method)

    def call() -> None:
        found = kept()
        if found is None:
            raise ClosedError("the buffer that this sampler belongs to is gone; make a sampler for each buffer")
        found()

    return call


def reopen(cls: type[ReplayBuffer], path: Path | Bucket, how: dict[str, Any], state: dict[str, Any]) -> ReplayBuffer:
    """Open a buffer again that was pickled or copied, with the state of its draws.

    It is read-only if somebody, this process included, holds the store for writing at this moment.
    """
    try:
        buffer = cls(path, **how)
    except LockedError:
        buffer = cls(path, **{**how, "mode": "r"})
    buffer.load_state_dict(state)
    return buffer

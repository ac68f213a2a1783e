"""ReplayBuffer: what users hold."""

from __future__ import annotations

import copy
import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import column_paths, integers, refuse_alone, seconds_of, step_ids, truth
from diskbuffer.arguments.integers import integer, integer_or_none
from diskbuffer.arguments.paths import local_path
from diskbuffer.arguments.wording import counted
from diskbuffer.columns.columns import Columns
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.copies import Copies
from diskbuffer.drawing import Drawing, OwnSamplers
from diskbuffer.episodes import Episode, Episodes
from diskbuffer.errors import InputError
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.loading.loader import Loader
from diskbuffer.loading.passes import Batches, Listed, Pass, Slicing, check_order
from diskbuffer.opening.access import Access
from diskbuffer.opening.checking import check
from diskbuffer.opening.closing import Closing, refuse_within_a_call
from diskbuffer.opening.figures import figures_of
from diskbuffer.opening.opening import join_limiter, open_place, reopen
from diskbuffer.options import CreateOptions, Options, checked_capacity, refuse_another, refuse_unknown, warning_of
from diskbuffer.reading.batch_reader import BatchReader, StoreReader
from diskbuffer.reading.batch_source import DrawnBatch, Sampling
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.delivery import Transform
from diskbuffer.reading.episode_reader import EpisodeReader
from diskbuffer.reading.ranks import Ranks
from diskbuffer.reading.wanted import Wanted
from diskbuffer.recording.recorder import Recorder
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.runtime.notebook import notebook
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.samplers import Sampler
from diskbuffer.samplers.draws import Form, Steps
from diskbuffer.samplers.epochs import EVERY_STEP
from diskbuffer.samplers.sampler import seed_sequence
from diskbuffer.samplers.uniform import n_step_form
from diskbuffer.store.checking.report import Report
from diskbuffer.store.copies import marks
from diskbuffer.writers.reader import MultiWriterReader

if TYPE_CHECKING:
    import torch

_SINGLE = Steps()
Autoreset = Literal["next_step", "same_step", "disabled"]


class ReplayBuffer:
    """Experience on disk, in a Zarr store, sampled as fast as from RAM.

    Opens the store at `path` if there is one, and creates it otherwise, which takes the columns from `env`, from the two
    spaces, or from ``columns=``. Nothing is ever wiped. To reopen, the path is enough; whatever else is given must be what the
    store has.

    Parameters
    ----------
    path : path-like
        A directory: a Zarr v3 group, which any Zarr tool can read at every moment.
    capacity : int, optional
        Steps to keep, of all environments together: the newest, so that each further step replaces the oldest. The disk has
        some more, as files are removed as a whole. None keeps everything.
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3 VecEnv, optional
        Where spaces, number of environments and autoreset mode are taken from; and `frame_stack` and `padding`, where it stacks
        frames in a `FrameStackObservation`. A `VecEnv` resets in the same step: `add` needs its infos. Observations keep the
        dtype of their space: those of MuJoCo are float64, on the disk and in batches; wrap the environment for float32.
    observation_space, action_space : gymnasium.Space, optional
        Of one environment. Where the observation is stacked (its first axis is `frame_stack` long), single frames are stored.
    n_envs : int, optional
        Environments that write side by side; 1, or that of `env`.
    frame_stack : int, optional
        Frames in an observation, along a new leading axis, as `gymnasium.wrappers.FrameStackObservation` makes them. Stored
        are single frames, so a store may be opened with another number later. That of the store or of `env`, or 1.
    padding : {"first", "zeros"}, optional
        What an episode's first stack is filled up with: copies of its first frame, or zeros.
    autoreset : {"next_step", "same_step", "disabled"}, optional
        What vector environments do at an episode's end, `gymnasium.vector.AutoresetMode`; needed with an `env` that does not say
        so. Without `env`, "disabled" for one environment; for more it must be given when a store is made. In next-step mode a
        step that starts from the last observation of an ended episode, without reward or flags, is the reset, and is not
        recorded. In same-step mode `add` needs `info`. Like `frame_stack` and `padding`, it only tells how steps are given and
        read, and may be another when reopening.
    mode : {"a", "r", "r+", "w-"}
        As in zarr: open or create; read only, beside a living writer; must exist; must not exist.
    seed : int, optional
        For the draws.
    threads : int, optional
        Threads that decode a batch; the machine's cores, eight at most.
    mark : str, optional
        A mark that was made of this store (`mark`). With ``mode="r"`` the mark is what is read. Otherwise the store goes back to
        it, and **what came later is dropped**; marks stay, those made later, too. A crash on the way is no harm: whoever opens
        the store for writing next finishes it. Buffers elsewhere that were reading keep what they had mapped, and get a
        CorruptionError that tells to open it again for anything else.
    writer : str, optional
        One of several writers, by a name of its own: letters, digits, "." "_" and "-". `path` is then a directory for all of
        them, and this one's store is below it. ``writer="actor-*"`` takes the first number whose store no process writes to,
        with its steps. With ``mode="r"`` and without `writer`, all are read as one: uniformly over the steps of all, under ids
        that stay. Columns that are written then (`write`, `map`, tags, priorities) are files beside the stores, which one
        process at a time may write. `capacity` is this writer's own, so that eight writers take eight times the disk.
    wait : float, optional
        Seconds to wait, with ``mode="r"``, until others have made what is to be read: actors that are only starting. None does
        not wait, nor is anything waited for where something else is at `path`.
    limiter : SampleToInsertRatio, optional
        Have `add` and `extend` wait where too little was sampled for what was added, and `sample`, `draw` and loaders where too
        much was; in all threads and processes that open the buffer with the same one, actors and learners. See `limiter` below.
    flush_every : float, optional
        Seconds after which `flush` runs by itself, again and again, beside the program, which waits a millisecond for it at most.
        What stands in the way, such as a full disk, `stats` tells, and the next `flush` raises. None leaves it to you.
    **create
        What else a store is made with: its columns, where there are no spaces to take them from, `extra` columns, transforms of
        pictures, metadata, sizes; see `diskbuffer.options.CreateOptions`.

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
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        env: Any = None,
        observation_space: Any = None,
        action_space: Any = None,
        n_envs: int | None = None,
        frame_stack: int | None = None,
        padding: Literal["first", "zeros"] | None = None,
        autoreset: Autoreset | None = None,
        mode: Literal["a", "r", "r+", "w-"] = "a",
        seed: int | None = None,
        threads: int | None = None,
        mark: str | None = None,
        writer: str | None = None,
        wait: float | None = None,
        limiter: SampleToInsertRatio | None = None,
        flush_every: float | None = 30.0,
        **create: Unpack[CreateOptions],
    ) -> None:
        self.limiter: Limiter | None = None
        if mode not in ("a", "r", "r+", "w-"):
            raise InputError(f"mode must be 'a', 'r', 'r+' or 'w-', found {mode!r}; there is no mode that wipes a store")
        threads = integer_or_none("threads", threads)
        flush_seconds = seconds_of("flush_every", flush_every)
        if flush_seconds == 0:
            raise InputError("flush_every must be more than 0 seconds, or None for never, found 0")
        samplers = OwnSamplers(seed)
        refuse_unknown(create, ReplayBuffer)
        requested = Options(
            capacity=capacity,
            env=env,
            observation_space=observation_space,
            action_space=action_space,
            n_envs=n_envs,
            frame_stack=frame_stack,
            padding=padding,
            autoreset=autoreset,
            **create,
        ).checked()
        opened = open_place(local_path(path), requested, mode, mark, writer, wait)
        self.path, self._store, self._multi_writer = opened.place, opened.store, opened.multi_writer
        self._writer = writer = None if writer is None else self.path.name
        self._closing = Closing(self._store)
        try:
            refuse_another(self.path, self._store.layout, opened.options)
            warning = warning_of(self.path, self._store.layout, opened.options)
            if warning is not None:
                warnings.warn(warning, UserWarning, stacklevel=2)
            layout = dataclasses.replace(self._store.layout, **opened.options.views())
            self.frame_stack = layout.frame_stack
            kind = StoreReader if self._multi_writer is None else MultiWriterReader
            self._reader: BatchReader = kind(self._store, layout.frame_stack, layout.padding == "zeros", threads)
            self._closing.reader, self._closing.multi_writer = self._reader, self._multi_writer
            self._derived = DerivedColumns(self._store, self._reader)
            if limiter is not None:
                self.limiter = join_limiter(opened, limiter, mode, mark, writer, self._reader.index)
                self._closing.limiter = self.limiter
            recorder: Recorder | None = None
            if mode != "r":
                log = self._closing.log = StreamLog(self._store, self._reader.index)
                recorder = Recorder(layout, log, self._reader.index, self._reader.newest)
                if opened.was_of_another:
                    recorder.cut_off(np.arange(layout.streams))
            self._access = Access(self.path, self._closing, self._store, self._reader, self._multi_writer, recorder)
        except BaseException as error:
            marks.advise_how_to_make_room(error, self._store.files)
            self._closing.abandon()
            raise
        self._drawing = Drawing(samplers, self._derived, self._access, self.limiter)
        self._how = {"frame_stack": layout.frame_stack, "padding": layout.padding, "autoreset": layout.autoreset}
        self._how |= {"threads": threads, "mode": "r", "mark": mark} if mode == "r" else {"threads": threads, "mode": "r+"}
        self._how |= {} if writer is not None and mode == "r" else {"limiter": limiter}
        self._how["flush_every"] = flush_every
        self._closing.close_when_dropped(self)
        if flush_every is not None and (mode != "r" or self._multi_writer is not None):
            self._closing.sync_every(flush_seconds)

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

        A power loss does, unless `flush` has run since, which it does by itself twice a minute.

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
            ``terminal_observation``. ``infos=`` is the same, where no column is called that.
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
        InputError, StackError
            A shape, dtype, value or name does not fit, or a stack in `next_obs` is not that of `obs` moved on. Nothing was added.
        DiskFullError, OSError
            The disk is full, or fails. Nothing was added, what was added before is kept; try again when there is room.

        Notes
        -----
        About 9 us for an 84x84 frame, compression included, which comes in batches: every 128 rows or so, some 0.2 ms.
        """
        if self.limiter is not None:
            self._access.recorder("add()")  # nobody waits for an error
            self.limiter.wait_to_add()
        with self._store.lock:
            recorder = self._access.recorder("add()")
            if extra and info is None and "infos" in extra and not any(path.split("/")[0] == "infos" for path in self.columns):
                info = extra.pop("infos")
            added = recorder.add(obs, next_obs, (action, reward, terminated, truncated), extra, info, new_episode)
            if self.limiter is not None:
                self.limiter.note_added(self._access.log().added)
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
            Observations before the steps: of one environment, which has no axis of its own, or of all of several. Without
            `next_obs`, a trajectory: one more than there are steps.
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
        DiskFullError, OSError
            The disk is full, or fails. ``len(buffer)`` tells what was added before that.
        """
        if self.limiter is not None:
            self._access.recorder("extend()")  # nobody waits for an error
            self.limiter.wait_to_add()
        with self._store.lock:
            recorder = self._access.recorder("extend()")
            stream = None if env is None else integer("env", env, 0, self.n_envs - 1)
            values = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated, **extra}
            added = recorder.extend(values, obs, next_obs, stream, new_episode)
            if self.limiter is not None:
                self.limiter.note_added(self._access.log().added)
            return added

    def cut_off(self, envs: Any = slice(None)) -> None:
        """Tell that environments were reset without an end of their episodes, though the next observation may look the same.

        Parameters
        ----------
        envs : int, list of int or slice
            Which; all of them by default.
        """
        with self._store.lock:
            recorder = self._access.recorder("cut_off()")
            which = np.arange(self.n_envs)[envs] if isinstance(envs, slice) else np.atleast_1d(integers("envs", envs, (0, 1)))
            if (which < 0).any() or (which >= self.n_envs).any():
                raise InputError(f"envs must be among 0 to {self.n_envs - 1}, found {envs!r}")
            recorder.cut_off(which)

    def clear(self) -> None:
        """Drop every step, for good, and keep all else: columns, capacity, metadata, marks.

        For on-policy use, after each rollout. All steps or none, also where a kill comes in between; a power loss undoes what was
        cleared since the last `flush`, with all that was added. Episodes that run are cut off, and their next step starts
        another; ids of steps go on counting. Nothing is synced: the disk's space is given back by the next flush, which comes at
        once where 256 MB of it, or half of what is free, wait for that. Batches that you have stay as they are. A loader that
        runs draws anew what was drawn ahead, and raises an EmptyBufferError as long as there is nothing.

        Raises
        ------
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        DiskFullError, OSError
            The disk is full, or fails. Every step is there still.
        """
        self._access.must_write("clear()")
        with self._closing.copying, self._store.lock, Uninterrupted():
            self._access.recorder().clear()
        self._access.log().flush.sync_if_much_waits()

    def resize(self, capacity: int | None) -> None:
        """Change the capacity, for good; what is too old for a smaller one is dropped at once.

        Segments keep their size, which was chosen by the first capacity: of a much smaller one, the disk has more than is kept.

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
        DiskFullError, OSError
            The disk is full, or fails. The capacity is what it was.
        """
        requested = checked_capacity(capacity, self._store.layout, self.frame_stack)
        self._access.must_write("resize()")
        with self._closing.copying, self._store.lock, Uninterrupted():
            self._access.log().resize(requested)

    def flush(self, *, recompress: bool = False) -> None:
        """Sync every step to the disk, so that it survives a power loss or a crash of the kernel, too.

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
        DiskFullError, OSError
            The disk is full, or fails. Nothing is lost that was there; what was synced before still counts, and segments that are
            left stay as they are, and are tried again later.
        """
        refuse_within_a_call(self._store, "flush")
        if recompress:
            with self._store.lock:
                log = self._access.log("flush()")
                log.pack()
            log.wait_for_sealing()
        if self._multi_writer is not None:
            self._access.write_columns("flush()")
        else:
            with self._store.lock:
                self._access.log("flush()")
        self._closing.sync()

    # Reading

    def sample(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        columns: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        numpy: bool = False,
    ) -> Batch:
        """Draw steps and return them.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            Which steps; a `Uniform` of the buffer's own. `Slices` draws sequences.
        columns : sequence of str, optional
            These alone are read and delivered, such as ``["obs/camera", "action"]``; ``next_obs`` comes with ``obs``, and what
            the sampler tells of each step comes always. What it needs itself, such as ``terminated`` for n-step returns, is read,
            too. By default all but columns that are delivered on request, as priorities are.
        device : torch.device or str, optional
            Where tensors go. `loader` does so while the GPU computes.
        transform : callable, optional
            ``transform(batch)`` is returned instead. It gets the batch in RAM, and may write into it, but for what ``obs`` and
            ``next_obs`` share. Tensors and arrays of numbers, in dicts, lists and tuples, are sent to `device`, if it is given
            and not the CPU. If it raises, the batch was not delivered: the next call has the same steps.
        numpy : bool
            Whether to return arrays in place of tensors. PyTorch is imported when tensors are first made, and takes most of the
            memory, and of the time, that a process needs to start.

        Returns
        -------
        dict of str to torch.Tensor, or to array
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
        self._access.check_open()
        source = self._drawing.source(sampler, integer("batch_size", batch_size), column_paths(columns))
        return source.sample(Wanted.of(device, transform, numpy))

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
        self._access.check_open()
        return self._drawing.source(sampler, integer("batch_size", batch_size)).draw()

    def at(
        self,
        steps: Any = None,
        length: int | None = None,
        *,
        ages: Any = None,
        envs: Any = None,
        columns: Sequence[str] | None = None,
        n_step: int | None = None,
        gamma: float | None = None,
        copy: bool = False,
        numpy: bool = False,
    ) -> Batch:
        """Return given steps, as `sample` does.

        Parameters
        ----------
        steps : (n,) integers
            As in a batch's ``steps``, or from `steps`.
        ages, envs
            As in `steps`, in place of ids: single steps by how many of their environment came after them.
        length : int, optional
            Sequences of so many steps, from each of `steps` on, within an episode: all columns get an axis of time after
            the first.
        columns : sequence of str, optional
            As in `sample`.
        n_step, gamma
            As in `Uniform`, 1 and 0.99 by default; of single steps.
        copy : bool
            Whether ``obs`` and ``next_obs`` have memory of their own, which may be written to; of single steps. If not, stacks of
            frames share it: that takes a third less time.
        numpy : bool
            Whether to return arrays in place of tensors.

        Raises
        ------
        InputError
            There is no such step, or not any more, or no such column; or the arguments do not go together.
        """
        self._access.check_open()
        size, paths = integer_or_none("length", length), column_paths(columns)
        apart, numpy = truth("copy", copy), truth("numpy", numpy)
        ahead = 1 if n_step is None else integer("n_step", n_step)
        refuse_alone("gamma", gamma, "n_step", n_step)
        refuse_alone("envs", envs, "ages", ages)
        if ahead == 1 and not apart:  # most ask for that, and looking at gamma takes time
            form: Form = _SINGLE if size is None else Steps(size)
        elif size is not None:
            raise InputError("n_step= and copy= go with single steps: leave out length=")
        else:
            form = n_step_form(ahead, 0.99 if gamma is None else gamma, apart=apart)
        if ages is None:
            return self._reader.at(steps, form, paths, numpy=numpy)
        if steps is not None or size is not None:
            raise InputError("ages= tell which single steps are meant: leave out the steps, and length=")
        return self._reader.recent(ages, envs, form, paths, numpy=numpy)

    def steps(self, ages: Any = None, envs: Any = None) -> npt.NDArray[np.int64]:
        """Return the ids of all steps that can be sampled, (len(buffer),): environment after environment, oldest first.

        These are the ids in a batch's ``steps``, which `at` and others take. They stay what they are, so they do not begin at 0
        once steps were evicted, and have gaps where episodes end.

        Parameters
        ----------
        ages : (n,) integers, optional
            Of these steps alone, (n,): how many steps of its environment came after each, 0 for the newest. That is how other
            libraries' ring buffers number them, from the newest backwards.
        envs : int or (n,) integers
            With `ages`: whose; 0 by default.

        Raises
        ------
        InputError
            There is no step that old, or no such environment.
        """
        self._access.check_open()
        refuse_alone("envs", envs, "ages", ages)
        return self._reader.all_ids() if ages is None else self._reader.recent_ids(ages, envs)

    def episode(self, which: int | Episode, *, columns: Sequence[str] | None = None, numpy: bool = False) -> Batch:
        """Return one episode: its T steps, and its T + 1 observations.

        Parameters
        ----------
        which : int or Episode
            One of `episodes`, or its id: that of the step it began with, ``buffer.episodes.id``.
        columns : sequence of str, optional
            As in `at`: these alone are read.
        numpy : bool
            As in `at`.

        Returns
        -------
        dict of str to torch.Tensor, or to array
            ``obs``, (T + 1, ...), or (T + 1, frame_stack, ...), the last of which is the final observation; nested for dict
            observations. All else as in `sample`, (T, ...). Of an episode whose first steps were evicted, those that are left.

        Raises
        ------
        InputError
            There is no such episode, or it was evicted.
        """
        self._access.check_open()
        episode = which if isinstance(which, Episode) else self.episodes.find(which)
        self._reader.refuse_another(episode.identity)
        return self._reader.episode(episode, column_paths(columns), numpy=truth("numpy", numpy))

    def loader(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        columns: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        numpy: bool = False,
        prefetch: int = 3,
        threads: int | None = None,
        transform_threads: int = 0,
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
        columns : sequence of str, optional
            As in `sample`.
        device : torch.device or str, optional
            Where tensors go: to an accelerator from pinned memory, on a stream of its own.
        transform : callable, optional
            As in `sample`, called when a batch's turn has come, earlier where it goes to an accelerator: augmentation, say. What
            it raises, the learner gets in the batch's place.
        numpy : bool
            As in `sample`.
        prefetch : int
            How many batches may be ahead.
        threads : int, optional
            How many threads gather a batch, without Python; one less than `ReplayBuffer` has, at least one. The learner helps
            where it waits.
        transform_threads : int
            In how many threads of Python the function, and that of `Hindsight`, is called ahead of the learner, in several at a
            time; 0 for none.
        rank, world_size : int, optional
            Which of how many learners this is: from torch.distributed's default process group, where one is initialised. Each
            batch is then shared out, and all must draw with the same seed and see the same steps; see
            `diskbuffer.reading.ranks.Ranks`. ``rank=0, world_size=1`` is a learner that draws for itself.
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
        self._access.check_open()
        ranks, every = Ranks.of(rank, world_size), seconds_of("refresh_every", refresh_every)
        sampler = self._drawing.sampler(sampler, "loader", ranks)
        size, ahead = integer("batch_size", batch_size), integer("prefetch", prefetch)
        wanted, paths = Wanted.of(device, transform, numpy), column_paths(columns)

        def source() -> Sampling:
            return self._drawing.sampling(sampler, size, paths, ranks, every)

        source()  # which raises now what would be wrong in the loop
        return Loader(source, wanted, ahead, self._threads(threads), transform_threads)

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        merge_last: bool = True,
        *,
        steps: Any = None,
        sampler: Sampler | None = None,
        seed: int | None = None,
        columns: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        numpy: bool = False,
        prefetch: int = 3,
        threads: int | None = None,
        transform_threads: int = 0,
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
        columns, device, transform, numpy, prefetch, threads, transform_threads
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
        self._access.check_open()
        ranks = Ranks.of(rank, world_size)
        size, ahead = integer("batch_size", batch_size), integer("prefetch", prefetch)
        wanted = Wanted.of(device, transform, numpy)
        seed_sequence(seed)
        check_order(shuffle=shuffle, seed=seed, steps=steps, sampler=sampler, ranks=ranks)
        samples = EVERY_STEP if sampler is None else self._drawing.sampler(sampler, "sample").samples()
        named = None if steps is None else step_ids(steps)

        paths = samples.form.chosen(column_paths(columns))
        with self._reader.lock:
            self._reader.select(paths)  # which raises now what would be wrong in the loop
        slicing = Slicing(size, merge_last, ranks, paths)

        def source(state: Mapping[str, Any] | None) -> Pass | Listed:
            if named is not None:
                return Listed(self._reader, named, slicing, self._access.check_open, state)
            entropy = int(seed_sequence(seed).entropy)  # type: ignore[arg-type]
            return Pass(self._reader, slicing, shuffle, entropy, self._access.check_open, state, samples=samples)

        return Batches(source, wanted, ahead, self._threads(threads), transform_threads)

    def _threads(self, threads: int | None) -> int:
        return max(1, self._reader.gatherer.threads - 1) if threads is None else integer("threads", threads)

    def refresh(self) -> None:
        """See what a writer in another process has added and evicted since; needed with ``mode="r"`` only.

        Nothing is done where this buffer is the one that is open for writing. `loader` does it by itself with ``refresh_every=``.

        Raises
        ------
        NotAStoreError, CorruptionError
            The store was moved, removed or replaced; or it went back to a mark: open it again.
        EvictedError
            For ten seconds a writer evicted steps faster than this reader could see which are there.

        Notes
        -----
        What is new is read, whatever is there: under 1 ms for 1,000 steps, in a store of a hundred thousand as of hundreds of
        millions. All of it is read anew after a recovery from a power loss, or a repair: 1 ms for 100,000 steps. Of several
        writers' stores, those that have not changed cost 5 us each.
        """
        self._access.check_open()
        self._reader.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the buffer's own draws, to be saved with the model: it counts batches that were delivered."""
        return self._drawing.own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the draws of a state that `state_dict` returned."""
        self._drawing.own.load_state_dict(state)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to open it again, and the state of its draws; see `reopen`."""
        self._access.check_open()
        path, how = self.path, self._how
        if self._writer is not None and how["mode"] != "r":
            path, how = self.path.parent, how | {"writer": self._writer}
        return reopen, (type(self), path, how, self.state_dict())

    # Looking

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        self._access.check_open()
        return self._reader.count()

    @property
    def n_envs(self) -> int:
        """Environments that write side by side."""
        return self._store.layout.n_envs

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return how many steps each environment has, and has ever had: (n_envs,) each."""
        self._access.check_open()
        stored, ever = self._reader.counts()
        return stored[: self.n_envs], ever[: self.n_envs]

    @property
    def capacity(self) -> int | None:
        """How many steps are kept, the newest; None if all are. Of several writers' stores, their sum.

        A reader may have more: steps that are just being added count before others are given up for them, and where the writer
        was killed in between, the next one gives these up.
        """
        return self._store.capacity

    @property
    def environment(self) -> dict[str, Any] | None:
        """What the environment told of itself when the store was created; None where nothing is known.

        As far as it told: ``id``, ``observation_space`` and ``action_space`` (``kind``, ``n``, ``low``, ``high``, ...),
        ``wrappers`` (the outermost first), ``n_envs``, ``autoreset``, ``seed``, and ``versions`` of diskbuffer, Gymnasium and its
        own package.
        """
        stored = self._store.layout.environment
        return None if stored is None else copy.deepcopy(dict(stored))

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What was given as ``metadata=`` when the store was created; None where nothing was."""
        stored = self._store.layout.metadata
        return None if stored is None else copy.deepcopy(dict(stored))

    @property
    def columns(self) -> Columns:
        """The columns, a mapping by path; and what writes others, from what the steps have."""
        return Columns(self._derived, self._access, self._closing.copying, self.flush, self._threads)

    @property
    def copies(self) -> Copies:
        """Snapshots and marks of the buffer."""
        opened = self, self._store, self._multi_writer, self._access, self._closing.copying
        return Copies(*opened, _recover=lambda copy: ReplayBuffer(copy, mode="r+").close())

    @property
    def episodes(self) -> Episodes:
        """The episodes: a table that is read when it is first asked for, to select, tag and read them."""
        self._access.check_open()
        return Episodes(self, self._derived, self._access)

    def _repr_html_(self) -> str | None:
        if self._closing.closed:
            return None  # as its `repr` says
        source, every = EpisodeReader(self._reader), self._reader.episodes()
        return cast(str, notebook("buffer").html(source, self.stats(), self.columns.derived, every))

    def check(self, progress: bool = True) -> Report:
        """Verify every structure and every checksum of the store, and decode every chunk; see `diskbuffer.check`.

        Reads all of it: some 15 s for a million 84x84 frames. Of a store that is being written to, here or elsewhere, it is
        what is sealed (``flush(recompress=True)`` first, to have nearly all of it). To repair, close the buffer and call
        ``diskbuffer.check(path, repair=True)``.

        Raises
        ------
        NotAStoreError
            The store was moved, removed or replaced since it was opened.
        """
        self._access.check_open()
        self._access.check_in_place()
        report = check(self.path, progress=progress)
        self._access.check_in_place()
        return report

    def stats(self) -> dict[str, Any]:
        """Return figures on the buffer; walks the store's files for ``disk_bytes``.

        ``steps`` (to sample), ``added`` (ever), ``capacity``, ``episodes``, ``n_envs``, ``segments``, ``unsealed`` (complete
        segments that wait for being recompressed), ``seal_error`` and ``flush_error`` (why sealing, or flushing by itself, failed
        last; None if it did not), ``disk_bytes`` (allocated, marks included, what they share once), ``raw_bytes`` (of the rows,
        uncompressed), ``index_bytes`` (of RAM), ``decoder``, ``threads``; and ``cut_off``, episodes that ended without a flag
        since the buffer was opened.

        ``compression`` tells, of each column that is compressed, what this buffer did when it sealed segments: ``codec`` (the
        column's own, or what was chosen from its data, None before that), ``ratio`` (bytes on disk of each byte), ``us_per_row``.

        ``limiter``, where there is one: what `Limiter.state` returns.
        """
        self._access.check_open()
        limiter = {} if self.limiter is None else {"limiter": self.limiter.state()}
        error = self._closing.flush_error
        figures = figures_of(self._store, self._reader, self._access) | {"flush_error": None if error is None else str(error)}
        return figures | limiter

    def __repr__(self) -> str:
        if self._closing.closed:
            return f"<ReplayBuffer {self.path}, closed>"
        capacity = "" if self.capacity is None else f" (capacity {self.capacity:,})"
        steps, episodes = counted(len(self), "step"), counted(self._reader.count_episodes(), "episode")
        return f"<ReplayBuffer {self.path}: {steps}{capacity}, {episodes}, {counted(self.n_envs, 'environment')}>"

    # Closing

    def close(self) -> None:
        """Write the newest rows to their columns, sync everything, and let another writer in. Twice is fine.

        A buffer that is never closed, as its process dies, loses nothing, but opening it takes a little longer. One that nothing
        refers to any more is closed when it is collected as garbage. Files are unmapped at once, those that a batch is just
        gathered from once it is there.

        In a fork of the process that opened the buffer, this only releases the child's copy.
        """
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

"""What a caller asks a store to be: from an environment, spaces or columns to a layout, or to a comparison with one."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from diskbuffer.arguments.integers import integer_or_none
from diskbuffer.arguments.wording import counted
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.schema.environment import as_json, describe, differences, stack_of
from diskbuffer.schema.schema import Column, Schema, is_observation
from diskbuffer.schema.transforms import Greyscale, Resize, notation, result_of, transforms_of
from diskbuffer.store.format.chunks import check_libraries
from diskbuffer.store.format.layout import DISABLED, MOST_FRAMES, MOST_STREAMS, NEXT_STEP, SAME_STEP, Layout
from diskbuffer.store.format.sizes import CHUNK_ROWS, chunk_rows_of, segment_rows_of, small_segment_rows_of, tail_rows_of

_MOST_SLOTS = 2**24
_ANOTHER = "Open it with its path alone, or give another path for a new store"
_MORE = {  # where nothing else is different
    "  capacity:": "; ReplayBuffer.resize() changes the capacity of one that is open",
    "  n_envs:": "; a Mixture samples from both",
}
_MODES = {"NextStep": NEXT_STEP, "SameStep": SAME_STEP, "Disabled": DISABLED}  # values of gymnasium's AutoresetMode
_GIVE_AUTORESET = (
    "give autoreset='next_step' (in a step of its own), 'same_step' (in the step that ends an episode) or 'disabled' (you call "
    "reset, or give whole episodes)"
)


class CreateOptions(TypedDict, total=False):
    """What `ReplayBuffer` takes for a store that it makes, beside its own arguments; to reopen one, none of it is needed.

    Parameters
    ----------
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
    segment_rows : int, optional
        Rows of a segment, a power of two: the unit of eviction. Chosen from the capacity.
    chunk_rows : int, optional
        Rows that are compressed together, where rows are compressed (those of 1 KiB and more): 1, 2, 4 or 8. More of them take
        less of the disk, and more time to pick single steps from. 4 by default, and fewer where a row has more than 64 KB; if
        neither this nor `segment_rows` is given, and all steps of the capacity take at most 256 MB, nothing is compressed.
    capacity_each : bool, optional
        Whether every environment keeps its own newest ``capacity // n_envs`` steps, for environments that add unevenly. False, or
        as the store has it.
    environment : mapping, optional
        With `columns`: what the environment is, in the form that `environment` of a buffer made with `env` or spaces has.
    metadata : mapping, optional
        Your own, of what JSON holds, 64 KiB at most, kept from the creation on: ``buffer.metadata``. When reopening, it must be
        the same, or left out.
    """

    columns: Mapping[str, Column] | None
    extra: Mapping[str, Column] | None
    transforms: Mapping[str, Greyscale | Resize | tuple[Greyscale | Resize, ...]] | None
    segment_rows: int | None
    chunk_rows: int | None
    capacity_each: bool | None
    environment: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


def refuse_unknown(given: Iterable[str], buffer: type) -> None:
    """Raise an InputError where an argument is none of a buffer's class, with the one that was meant, perhaps."""
    known: set[str] = set(CreateOptions.__annotations__)
    if not known.issuperset(given):  # the signature takes some milliseconds
        known |= inspect.signature(buffer).parameters.keys() - {"create"}
    for name in sorted(set(given) - known):
        near = difflib.get_close_matches(name, sorted(known), 1) or [f"{', '.join(sorted(known)[:-1])} or {max(known)}"]
        raise InputError(f"{buffer.__name__} takes no argument {name}=; did you mean {near[0]}?")


@dataclass(frozen=True)
class RequestedOptions:
    """What was asked for; None where nothing was."""

    schema: Schema | None
    capacity: int | None
    n_envs: int | None
    frame_stack: int | None
    padding: str | None
    autoreset: str | None
    segment_rows: int | None
    chunk_rows: int | None
    capacity_each: bool | None
    environment: dict[str, Any] | None
    metadata: dict[str, Any] | None

    def layout(self) -> Layout:
        """Return the layout of a new store."""
        if self.schema is None:
            raise InputError("there is no store at this path yet; to create one, give env=, both spaces, or columns=")
        streams = self.n_envs or 1
        if streams > 1 and self.autoreset is None:
            raise InputError(f"n_envs={streams} does not say how these environments reset: {_GIVE_AUTORESET}", option="autoreset")
        check_libraries(self.schema)
        columns, small = self.schema.columns, None
        if self.segment_rows is None and self.chunk_rows is None:
            small = small_segment_rows_of(self.capacity, streams, columns)
        chunk_rows = {} if small else chunk_rows_of(self.schema, self.chunk_rows)
        rows = self.segment_rows or small or segment_rows_of(self.capacity, streams, columns)
        layout = Layout(
            self.schema,
            self.capacity,
            streams,
            rows,
            chunk_rows,
            tail_rows_of(self.schema, chunk_rows, rows, streams),
            self.frame_stack or 1,
            self.padding or "first",
            self.autoreset or DISABLED,
            salt=secrets.randbits(63),
            capacity_each=bool(self.capacity_each),
            environment=self.environment,
            metadata=self.metadata,
        )
        if layout.first_slots() > _MOST_SLOTS:
            raise InputError(
                f"capacity {self.capacity} takes {layout.first_slots()} segments of {rows} rows, and {_MOST_SLOTS} is the most; "
                "give a smaller capacity, or None to keep everything"
            )
        return layout

    def views(self) -> dict[str, Any]:
        """Return what may differ from the store's own, as it only tells how steps are read and given."""
        views = {"frame_stack": self.frame_stack, "padding": self.padding, "autoreset": self.autoreset}
        return {name: value for name, value in views.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller gives to `ReplayBuffer`, as it was given; None where nothing was."""

    capacity: int | None = None
    env: Any = None
    observation_space: Any = None
    action_space: Any = None
    columns: Mapping[str, Column] | None = None
    extra: Mapping[str, Column] | None = None
    transforms: Mapping[str, Any] | None = None
    n_envs: int | None = None
    frame_stack: int | None = None
    padding: str | None = None
    autoreset: str | None = None
    segment_rows: int | None = None
    chunk_rows: int | None = None
    capacity_each: bool | None = None
    environment: Any = None
    metadata: Any = None

    def checked(self) -> RequestedOptions:
        """Check the options, with what an environment tells, and return what is wanted; an InputError where they differ."""
        self._check_choices()
        self._check_sources()
        known = self._with_sizes()._with_env()
        sizes = {name: integer_or_none(name, getattr(known, name)) for name in ("n_envs", "frame_stack")}  # an environment's own
        described, metadata = as_json("environment", self.environment), as_json("metadata", self.metadata)
        if described is not None and known.observation_space is not None:
            raise InputError("environment= tells what env= and spaces tell themselves; give it with columns= only")
        schema = None
        if self.columns is not None:
            schema = Schema.of(self.columns, self.extra)
            schema = Schema(with_transforms(schema.columns, self.transforms)) if self.transforms else schema
        elif known.observation_space is not None:
            spaces = known.observation_space, known.action_space
            schema = _unstacked(Schema.from_spaces(*spaces, self.extra), known.frame_stack or 1)
            schema = Schema(with_transforms(schema.columns, self.transforms))
            described = describe(*spaces, self.env, known.n_envs, known.autoreset)
        elif self.extra or self.transforms:
            raise InputError("extra= and transforms= are about columns of env=, spaces or columns=; give one of these, too")
        return RequestedOptions(
            schema,
            known.capacity,
            sizes["n_envs"],
            sizes["frame_stack"],
            known.padding,
            known.autoreset,
            known.segment_rows,
            known.chunk_rows,
            self.capacity_each,
            described,
            metadata,
        )

    def _with_sizes(self) -> Options:
        """Return the options with integers of Python's; an InputError where a size is none, or out of its range."""
        known = dataclasses.replace(
            self,
            capacity=integer_or_none("capacity", self.capacity),
            n_envs=integer_or_none("n_envs", self.n_envs, 1, MOST_STREAMS),
            frame_stack=integer_or_none("frame_stack", self.frame_stack, 1, MOST_FRAMES),
            segment_rows=integer_or_none("segment_rows", self.segment_rows, 8, 2**30),
            chunk_rows=checked_chunk_rows(self.chunk_rows),
        )
        _check_capacity(known.capacity, known.n_envs or 1, known.frame_stack or 1, each=bool(self.capacity_each))
        if known.segment_rows is not None and known.segment_rows & (known.segment_rows - 1):
            raise InputError(
                f"segment_rows must be a power of two from 8 to 2**30, found {self.segment_rows}", option="segment_rows"
            )
        return known

    def _check_choices(self) -> None:
        if self.capacity_each not in (None, True, False):
            raise InputError(f"capacity_each must be True, False or None, found {self.capacity_each!r}")
        if self.padding not in (None, "first", "zeros"):
            raise InputError(f"padding must be 'first' or 'zeros', found {self.padding!r}", option="padding")
        if self.autoreset not in (None, NEXT_STEP, SAME_STEP, DISABLED):
            raise InputError(f"autoreset must be {NEXT_STEP!r}, {SAME_STEP!r} or {DISABLED!r}, found {self.autoreset!r}")

    def _check_sources(self) -> None:
        if sum(source is not None for source in (self.env, self.observation_space, self.columns)) > 1:
            raise InputError("give one of env=, observation_space= (with action_space=) and columns=")
        if (self.observation_space is None) != (self.action_space is None):
            raise InputError("give both observation_space= and action_space=")

    def _with_env(self) -> Options:
        """Return the options with the spaces, and whatever else an environment tells that was not given."""
        if self.env is None:
            return self
        observation_space, action_space, envs, mode = spaces_of(self.env)
        if self.autoreset is None and mode is None and hasattr(self.env, "single_observation_space"):
            raise InputError(
                f"env does not say in metadata['autoreset_mode'] how its environments reset: {_GIVE_AUTORESET}",
                option="autoreset",
            )
        frames, padding = self.frame_stack, self.padding
        stacked, filled = stack_of(self.env, observation_space)
        if frames in (None, stacked):
            frames, padding = stacked, padding or filled
        if self.n_envs not in (None, envs):
            raise InputError(f"env has {counted(envs, 'environment')}, but n_envs is {self.n_envs}")
        return dataclasses.replace(
            self,
            observation_space=observation_space,
            action_space=action_space,
            n_envs=envs,
            frame_stack=frames,
            padding=padding,
            autoreset=self.autoreset or mode,
        )


def checked_capacity(capacity: Any, stored: Layout, frame_stack: int) -> int | None:
    """Return what a store's capacity is to be; an InputError where it cannot be that."""
    number = integer_or_none("capacity", capacity)
    _check_capacity(number, stored.n_envs, frame_stack, each=stored.capacity_each)
    return number


def checked_chunk_rows(rows: Any) -> int | None:
    """Return how many rows are to be compressed together, None for as many as is usual; an InputError where they cannot be."""
    number = integer_or_none("chunk_rows", rows, CHUNK_ROWS[0], CHUNK_ROWS[-1])
    if number is not None and number not in CHUNK_ROWS:
        raise InputError(f"chunk_rows must be 1, 2, 4 or 8, found {number}", option="chunk_rows")
    return number


def _check_capacity(capacity: int | None, n_envs: int, frame_stack: int, *, each: bool) -> None:
    if capacity is not None and capacity < frame_stack:
        raise InputError(f"capacity must hold a stack of {frame_stack} frames at least, found {capacity}")
    if each and capacity is not None and capacity < n_envs * frame_stack:
        raise InputError(f"capacity must hold a stack of frames of each environment at least, found {capacity}")


def refuse_another(path: Path, stored: Layout, requested: RequestedOptions) -> None:
    """Raise a SchemaError, which shows the difference, where a store is not what was asked for."""
    _check_capacity(stored.capacity, stored.n_envs, requested.frame_stack or 1, each=False)
    lines = []
    if requested.schema is not None:
        lines += [stored.schema.recorded.difference(requested.schema)]
        lines += _other_codecs(stored.schema, requested.schema)
        lines += _other_transforms(stored.schema, requested.schema)
    for name, has, value in (
        ("capacity", stored.capacity, requested.capacity),
        ("n_envs", stored.n_envs, requested.n_envs),
        ("capacity_each", stored.capacity_each, requested.capacity_each),
        ("segment_rows", stored.segment_rows, requested.segment_rows),
    ):
        if value is not None and value != has:
            lines.append(f"  {name}: stored {has}, asked for {value}")
    chunks = sorted({n for path, n in stored.chunks_of.items() if path not in stored.lossy} - {requested.chunk_rows})
    if requested.chunk_rows is not None and chunks:
        lines.append(f"  chunk_rows: stored {' and '.join(map(str, chunks))}, asked for {requested.chunk_rows}")
    refused, others = differences(stored.environment, requested.environment)
    lines += refused + (others if refused else [])
    if requested.metadata is not None and requested.metadata != stored.metadata:
        lines.append(f"  metadata: stored {_shown(stored.metadata)}, asked for {_shown(requested.metadata)}")
    lines = [line for line in lines if line]
    if lines:
        more = next((more for start, more in _MORE.items() if len(lines) == 1 and lines[0].startswith(start)), "")
        raise SchemaError(f"the store at {path} is another than was asked for:\n" + "\n".join(lines), advice=_ANOTHER + more)


def _other_codecs(stored: Schema, requested: Schema) -> list[str]:
    """Show, a line each, the columns that were asked for with another codec than they have."""
    lines = []
    for path, column in requested.columns.items():
        if column.codec and path in stored.columns and (codec := stored[path].codec) != column.codec:
            has = f"codec {codec}" if codec else "a codec that is chosen from the data"
            lines.append(f"  {path}: stored with {has}, asked for {column.codec}")
    return lines


def _other_transforms(stored: Schema, requested: Schema) -> list[str]:
    """Show, a line each, the columns that are the same but for what is made of pictures."""
    lines = []
    for path, column in requested.columns.items():
        if stored.columns.get(path) == column and (has := stored[path].transforms) != column.transforms:
            transform = notation(column.transforms) or "none"
            lines.append(f"  {path}: pictures are stored with the transform {notation(has) or 'none'}, asked for {transform}")
    return lines


def with_transforms(columns: Mapping[str, Column], transforms: Mapping[str, Any] | None) -> dict[str, Column]:
    """Return columns of what is given as columns of what is stored, where it is transformed; by path."""
    stored = dict(columns)
    for path, chosen in (transforms or {}).items():
        if path not in columns:
            raise InputError(f"transforms: there is no column {path!r}; there are {', '.join(columns)}")
        transform = transforms_of(chosen)
        try:
            shape = result_of(transform, columns[path].shape)
            stored[path] = dataclasses.replace(columns[path], shape=shape, transform=transform)
        except SchemaError as error:
            raise SchemaError(f"transforms[{path!r}]: {error}") from error
    return stored


def warning_of(path: Path, stored: Layout, requested: RequestedOptions) -> str | None:
    """Return in what a store may be of another environment than is given, though its steps have the same form."""
    lines = differences(stored.environment, requested.environment)[1]
    if not lines:
        return None
    return f"the store at {path} may hold steps of another environment than is given:\n" + "\n".join(lines)


def _shown(metadata: Any) -> str:
    return "none" if metadata is None else json.dumps(metadata)[:1000]


def spaces_of(env: Any) -> tuple[Any, Any, int, str | None]:
    """Return the spaces of one environment, how many there are, and how they reset."""
    if hasattr(env, "single_observation_space"):
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        autoreset = _MODES.get(str(getattr(mode, "value", mode)))
        return env.single_observation_space, env.single_action_space, int(env.num_envs), autoreset
    if hasattr(env, "num_envs") and hasattr(env, "step_wait"):  # a VecEnv of Stable-Baselines3
        return env.observation_space, env.action_space, int(env.num_envs), SAME_STEP
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return env.observation_space, env.action_space, 1, None
    raise InputError(
        f"env must be a gymnasium.Env, a gymnasium.vector.VectorEnv or a VecEnv of Stable-Baselines3, found {type(env).__name__}"
    )


def _unstacked(schema: Schema, frame_stack: int) -> Schema:
    """Take the stack's axis off observations whose space has one."""
    if frame_stack == 1:
        return schema
    return Schema(
        {
            path: dataclasses.replace(column, shape=column.shape[1:])
            if is_observation(path) and len(column.shape) > 1 and column.shape[0] == frame_stack
            else column
            for path, column in schema.columns.items()
        }
    )

"""Several stores as one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from diskbuffer.editing.new_store import NewStore, some_columns
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.formats.lossy_conversion import refuse
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import either, joint_kind, local_path

StorePath = str | os.PathLike[str]


def merge(
    stores: Sequence[StorePath],
    new: StorePath,
    *,
    columns: Collection[str] | None = None,
    capacity: int | None = None,
    allow_loss: Collection[str] = (),
    restart: bool = False,
    progress: bool = True,
) -> Path:
    """Write the episodes of several stores to a new one, those of the first store first. The stores stay as they are.

    The new store has as many environments as the one with the most of them. The episodes of environment 0 of every store come
    into stream 0, one store's after the other's, and so on; an episode that was running is cut off where others come after it.
    Tags are kept. Codecs, and how environments reset, are as in the first store.

    Parameters
    ----------
    stores : sequence of path-like
        Two or more. Trainings may be writing to them.
    new : path-like
        There must be nothing, or an empty directory.
    columns : collection of str, optional
        Which columns, as in `copy`; all by default.
    capacity : int, optional
        Keep the newest so many steps; all by default.
    allow_loss : collection of str
        What to go on without, where stores differ in it: "derived" (columns written later that not all of them have),
        "environment", "metadata".
    restart : bool
        Whether to begin anew, where a run with other options, or of other steps, was not finished.
    progress : bool
        Whether to show progress.

    Returns
    -------
    pathlib.Path
        The new store's path.

    Raises
    ------
    SchemaError
        Recorded columns, stacks or paddings differ; the message names them.
    LossError
        Something else differs that a store has once.
    InputError, CorruptionError, LockedError
        As for `copy`.
    """
    if isinstance(stores, str | os.PathLike) or len(stores) < 2:
        raise InputError("give two or more stores to merge")
    for store, times in Counter(local_path(store).resolve() for store in stores).items():
        if times > 1:
            raise InputError(f"{store} is given {times} times: its episodes would be in the new store as often")
    path = local_path(new)
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(StoreSource(store, None, some_columns(columns)))) for store in stores]
        if not any(len(source.table) for source in sources):
            raise InputError("there is no episode in any of them: nothing would be in the new store")
        names = [str(store) for store in stores]
        for name, source in zip(names[1:], sources[1:], strict=True):
            _refuse_others(names[0], sources[0], name, source)
        alike = [NewStore.like(source) for source in sources]
        lost = _differences(names, alike)
        refuse(lost, allow_loss, "one store cannot hold all of what these tell of themselves")
        shared = {name: column for name, column in alike[0].derived.items() if all(name in one.derived for one in alike)}
        merged = alike[0].changed(
            derived=shared if "derived" in lost else alike[0].derived,
            capacity=capacity,
            capacity_each=False,
            n_envs=max(one.options["n_envs"] for one in alike),
            segment_rows=None,
            environment=None if "environment" in lost else alike[0].options["environment"],
            metadata=None if "metadata" in lost else alike[0].options["metadata"],
            tags=tuple(dict.fromkeys(tag for one in alike for tag in one.options["tags"])),
        )
        episodes = (episode for source in sources for episode in source.episodes())
        return merged.write(path, {"edit": "merge"}, sources, episodes, restart=restart, progress=progress)


def _refuse_others(name: str, source: StoreSource, other_name: str, other: StoreSource) -> None:
    """Raise a SchemaError where steps of two stores cannot be in one."""
    lines = []
    columns, others = (
        {path: column for path, column in each.contents.columns.items() if path not in each.contents.derived}
        for each in (source, other)
    )
    for path in dict.fromkeys([*columns, *others]):
        if columns.get(path) != others.get(path):
            lines.append(f"  {path}: {columns.get(path, 'none')} in {name}, {others.get(path, 'none')} in {other_name}")
    for what in ("frame_stack", "padding"):
        has, has_other = getattr(source.info, what), getattr(other.info, what)
        if has != has_other:
            lines.append(f"  {what}: {has} in {name}, {has_other} in {other_name}")
    if lines:
        raise SchemaError(
            "stores to be merged must have the same columns:\n"
            + "\n".join(lines)
            + f"\nGive {either('columns=', '--columns')} with those that all have, or make them alike first, with copy"
        )
    for key in sorted(source.table.values.keys() & other.table.values.keys()):
        kind, other_kind = source.table.values[key].kind, other.table.values[key].kind
        if joint_kind(kind, other_kind) is None:
            raise SchemaError(
                f"{key}: what episodes were given is a {kind} in {name}, and a {other_kind} in {other_name}. Take it away in one "
                f"of them: buffer.episodes.set_values({key}=None)"
            )


def _differences(names: Sequence[str], stores: Sequence[NewStore]) -> dict[str, str]:
    """Return in what stores differ that a store has once: what is lost, and a sentence on it."""
    lost: dict[str, str] = {}
    some = {path for one in stores for path in one.derived if any(each.derived.get(path) != one.derived[path] for each in stores)}
    if some:
        lost["derived"] = f"columns written later that not all of them have, or not alike: {', '.join(sorted(some))}"
    for what in ("environment", "metadata"):
        values = [one.options[what] for one in stores]
        other = next((n for n, one in enumerate(values) if one != values[0]), None)
        if other is not None:
            lost[what] = _first_difference(values[0], values[other], names[0], names[other])
    return lost


def _first_difference(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, name: str, other_name: str) -> str:
    if one is None or other is None:
        return f"{name if one is None else other_name} has none, and the others have"
    key = next(key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key))
    return f"{key!r} is {str(one.get(key))[:100]} in {name}, and {str(other.get(key))[:100]} in {other_name}"

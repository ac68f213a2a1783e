"""Copies of a store: of some episodes or columns, with other names, another capacity, compression or stack."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from diskbuffer import Column, ReplayBuffer
from diskbuffer.editing.buckets import download, is_url, upload
from diskbuffer.editing.new_store import NewStore, some_columns
from diskbuffer.editing.newest import capacity_for, newest_steps
from diskbuffer.editing.renaming import check_names, renamed, with_names
from diskbuffer.errors import InputError
from diskbuffer.formats.stored import StoreSource
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.plugin import EpisodeTable, StoreInfo, integer, integer_or_none, local_path, read_info, writers_of

StorePath = str | os.PathLike[str]


def copy(
    store: StorePath,
    new: StorePath,
    *,
    where: str | None = None,
    columns: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    capacity: int | Literal["all"] | None = None,
    codec: Mapping[str, str | None] | None = None,
    chunk_rows: int | None = None,
    frame_stack: int | None = None,
    restart: bool = False,
    progress: bool = True,
) -> Path | str:
    """Copy a store, whole or in part; a training may be writing to it.

    A copy with nothing else but another capacity is a snapshot: files of sealed segments are shared by hard links, and
    steps keep their ids. Otherwise steps are recorded anew, one episode after the other.

    Parameters
    ----------
    store, new : path-like
        At `new` there must be nothing, or an empty directory. One of them may be ``"s3://BUCKET/PATH"``, without other options:
        the store, of which all is copied file by file, must then be closed, and stay so meanwhile. The environment tells where
        the bucket is, and the credentials (``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ...).
    where : str, optional
        Which episodes: "return > 10 and ending == 'terminated'", as ``diskbuffer episodes --where`` has it.
    columns : collection of str, optional
        Which columns, by path; "obs" is all that begin with "obs/", too. Rewards and flags are always part of it.
    rename : mapping of str to str, optional
        Other names for columns, by path: ``{"obs/camera": "obs/wrist"}``. A part of an observation stays one, as it has more rows
        than other columns; flags, rewards and tags have names that every store has. Other options take the names in `store`.
    capacity : int or "all", optional
        Keep the newest so many steps, or all from now on. As the store's by default, or more where several writers' have more
        steps together: no step is lost.
    codec : mapping of str to str or None, optional
        How columns are compressed, by path, as `Column` takes it; None has it chosen from the data.
    chunk_rows : int, optional
        Rows that are compressed together, as `ReplayBuffer` takes it.
    frame_stack : int, optional
        Frames in an observation. The steps are those that the store has when it is opened with as many.
    restart : bool
        Whether to begin anew, where a copy with other options, or of other steps, was not finished.
    progress : bool
        Whether to show progress.

    Returns
    -------
    pathlib.Path or str
        The new store's path, or its URL.

    Raises
    ------
    InputError
        There is no such column or episode, an option does not fit, or something is at `new` already.
    SchemaError
        A column cannot be called that, or another is.
    CorruptionError
        The store is damaged.
    LockedError
        Another process is making the same store; or it writes to the one that is to go to a bucket.
    UnreachableError
        The bucket does not answer, or does not allow it.
    """
    if is_url(store) or is_url(new):
        if any(
            option is not None for option in (where, columns, capacity, codec or None, chunk_rows, frame_stack, rename or None)
        ):
            raise InputError("a store in a bucket is copied as it is: copy it down first, and choose from the copy")
        if is_url(store):
            return download(str(store), new, restart=restart, progress=progress)
        return upload(store, str(new), progress=progress)
    frame_stack = integer_or_none("frame_stack", frame_stack)
    path = local_path(new)
    several, info, names = writers_of(store) is not None, read_info(store), dict(rename or {})
    most = info.capacity
    if capacity is not None:
        most = None if capacity == "all" else integer("capacity", capacity, frame_stack or info.frame_stack)
    resized = most != info.capacity
    stacked = frame_stack not in (None, info.frame_stack)
    options = (where, columns, names or None, codec or None, chunk_rows)
    if not several and all(option is None for option in options) and not stacked:
        return _linked(store, path, {"capacity": most} if resized else {}, restart=restart)

    def choose(table: EpisodeTable, info: StoreInfo) -> EpisodeTable:
        return table if capacity is None else newest_steps(table, most, info)

    with closing(StoreSource(store, where, some_columns(columns), choose=choose, frame_stack=frame_stack)) as source:
        if not len(source.table):
            raise InputError("there is no such episode: nothing would be in the new store")
        check_names(source.contents, names)
        if most is not None and (needed := capacity_for(source.table, info)) > most:
            most, resized = needed, True
        changes: dict[str, Any] = {"capacity": most, "segment_rows": None} if resized else {}
        changes |= {} if chunk_rows is None else {"chunk_rows": chunk_rows}
        like = dataclasses.replace(NewStore.like(source), arrays=source.arrays())
        made = like.changed(
            columns=renamed(_recoded(like.columns, codec or {}), names), derived=renamed(like.derived, names), **changes
        )
        episodes = (with_names(episode, names) for episode in source.episodes())
        return made.write(path, {"edit": "copy", "rename": names}, [source], episodes, restart=restart, progress=progress)


def _linked(store: StorePath, path: Path, resize: dict[str, int | None], *, restart: bool) -> Path:
    """Make a snapshot, with another capacity where one is given; no run goes on with one: it is made in a moment."""
    with ReplayBuffer(store, mode="r") as buffer, Unfinished(path, restart=restart) as unfinished:
        buffer.copies.snapshot(unfinished.place)
        if resize:
            with ReplayBuffer(unfinished.place, mode="r+") as made:
                made.resize(resize["capacity"])
        unfinished.finish()
        return unfinished.target


def _recoded(columns: Mapping[str, Column], codecs: Mapping[str, str | None]) -> dict[str, Column]:
    """Return columns with other codecs."""
    for name in codecs:
        if name not in columns:
            raise InputError(f"there is no recorded column {name!r} to compress; there are {', '.join(columns)}")
    return {
        name: dataclasses.replace(column, codec=codecs[name]) if name in codecs else column for name, column in columns.items()
    }

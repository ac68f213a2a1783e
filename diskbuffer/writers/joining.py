"""Becoming one of several writers: what its store is to be, as far as the caller leaves that open."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from diskbuffer.errors import InputError, NotAStoreError
from diskbuffer.options import RequestedOptions
from diskbuffer.store.building import is_there
from diskbuffer.store.format.layout import DISABLED
from diskbuffer.store.format.sizes import CHUNK_ROWS, chunk_rows_of, segment_rows_of
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.map_limit import refuse_too_many
from diskbuffer.writers.description import Description, has_writers, is_one_store, join, read_description


def join_writers(root: Path, name: str, options: RequestedOptions, mode: str) -> tuple[Path, RequestedOptions]:
    """Describe a writer beside the others, if it is new; return the path of its store, and what that is to be.

    What the caller leaves open, the columns even, is as the others have it.
    """
    path, files = root / name, Files(root)
    if not has_writers(files) and is_one_store(files):
        raise NotAStoreError(f"{root} is the store of one writer; give writer= a path where nothing is yet, or leave it out")
    description = read_description(files) if has_writers(files) else None
    exists = description is not None and description.find(name) is not None and is_there(path)
    if description is not None:
        options = _completed(options, description, has_capacity=exists)
    if mode in ("r", "r+") and not exists:
        raise NotAStoreError(f"there is no store of a writer {name!r} in {root}")
    if mode == "r":
        return path, options
    if options.schema is None:
        raise InputError(f"there are no writers in {root} yet; the first has to give env=, both spaces, or columns=")
    if description is None and options.segment_rows is None:
        rows = segment_rows_of(options.capacity, options.n_envs or 1, options.schema.columns)
        options = dataclasses.replace(options, segment_rows=rows)
    entry = None if description is None else description.find(name)
    if entry is not None and exists:
        options = dataclasses.replace(options, n_envs=options.n_envs or entry.streams)
        join(root, name, dataclasses.replace(options, autoreset=options.autoreset or DISABLED).layout())  # it has its own mode
        return path, options
    layout = options.layout()
    refuse_too_many(path, layout)
    join(root, name, layout)
    return path, options


def _completed(options: RequestedOptions, description: Description, *, has_capacity: bool) -> RequestedOptions:
    """Return what is wanted, as the others have it where the caller left it open."""
    common = description.common
    schema = options.schema or common.schema
    chunk = options.chunk_rows
    if chunk is None and chunk_rows_of(schema) != dict(common.chunks_of):
        chunk = next((n for n in CHUNK_ROWS if chunk_rows_of(schema, n) == dict(common.chunks_of)), None)
    return dataclasses.replace(
        options,
        schema=schema,
        capacity=options.capacity if options.capacity is not None or has_capacity else common.capacity,
        frame_stack=options.frame_stack or common.frame_stack,
        padding=options.padding or common.padding,
        segment_rows=options.segment_rows or common.segment_rows,
        chunk_rows=chunk,
    )

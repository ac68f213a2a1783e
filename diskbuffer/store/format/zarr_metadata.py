"""The Zarr metadata of a store: what makes its files arrays to every Zarr tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diskbuffer.schema.schema import Column
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.layout import ATTRIBUTE, CHECKSUMS, CLEARED, SEGMENTS, TABLE_SLOTS, TAIL, Layout


def nodes(layout: Layout, slots: int) -> dict[str, dict[str, Any]]:
    """Return the metadata of every node below the group, by path, for a store of `slots` slots."""
    metadata: dict[str, dict[str, Any]] = {}
    for path, column in layout.schema.columns.items():
        for n in range(1, path.count("/") + 1):
            metadata["/".join(path.split("/")[:n])] = group({})
        metadata[path] = _data_array(layout, path, column, slots)
    metadata[SEGMENTS] = group({})
    metadata[CHECKSUMS] = group({})
    for name, (dtype, shape) in layout.table().items():
        for n in range(3, name.count("/") + 1):
            metadata["/".join(name.split("/")[:n])] = group({})
        names = ("slot", "rows_and_check")[: 1 + len(shape)]
        metadata[name] = array((slots, *shape), (TABLE_SLOTS, *shape), dtype, names)
    metadata[CLEARED] = array((4, layout.streams), (4, layout.streams), "int64", ("words", "stream"))
    if layout.packed:
        metadata[TAIL] = group({})
    for path in layout.packed:
        column = layout.schema[path]
        shape = (layout.streams, layout.tail_rows, *column.shape)
        for n in range(1, path.count("/") + 1):
            metadata[f"{TAIL}/" + "/".join(path.split("/")[:n])] = group({})
        names = ("stream", "tail_row", *_inner_names(path, column))
        metadata[f"{TAIL}/{path}"] = array(shape, shape, column.np_dtype.name, names)
    return metadata


def root(layout: Layout, slots: int) -> dict[str, Any]:
    """Return the group's metadata, all nodes' consolidated in it: one file, so that readers see one size in all columns."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes(layout, slots)}
    return group({ATTRIBUTE: layout.attributes(slots)}) | {"consolidated_metadata": consolidated}


def _data_array(layout: Layout, path: str, column: Column, slots: int) -> dict[str, Any]:
    dtype = column.np_dtype.name
    shape = (slots * layout.segment_rows, *column.shape)
    names = ("row", *_inner_names(path, column))
    metadata = array(shape, (layout.segment_rows, *column.shape), dtype, names)
    if path in layout.chunks_of:
        metadata["codecs"] = [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [layout.chunk_rows(path), *column.shape],
                    "codecs": [*_chunk_codecs(column), {"name": "crc32c"}],
                    "index_codecs": _bytes_codec("uint64"),
                    "index_location": "end",
                },
            }
        ]
    return metadata


def _chunk_codecs(column: Column) -> list[dict[str, Any]]:
    if column.is_lossy:
        return [{"name": pictures.CODEC, "configuration": {"quality": pictures.quality_of(column)}}]
    method = codec.declared_method(column) or codec.SEALED
    blosc = {
        "cname": "lz4" if method == codec.NONE else method.compressor,
        "clevel": method.level,
        "shuffle": "shuffle" if method.item > 1 else "noshuffle",
        "typesize": method.item,
        "blocksize": 0,
    }
    return [*_bytes_codec(column.np_dtype.name), {"name": "blosc", "configuration": blosc}]


def group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a Zarr group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def array(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the metadata of an uncompressed Zarr array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": _fill_value(dtype),
        "codecs": _bytes_codec(dtype),
        "dimension_names": list(names),
        "attributes": {},
    }


def encode_json(metadata: Mapping[str, Any]) -> bytes:
    """Write metadata as Zarr stores them; on one line, which Python does ten times as fast as indented."""
    return json.dumps(metadata).encode()


def _inner_names(path: str, column: Column) -> tuple[str, ...]:
    return tuple(f"{path.replace('/', '_')}_{axis + 1}" for axis in range(len(column.shape)))


def _bytes_codec(dtype: str) -> list[dict[str, Any]]:
    if dtype in ("bool", "int8", "uint8"):
        return [{"name": "bytes"}]
    return [{"name": "bytes", "configuration": {"endian": "little"}}]


def _fill_value(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if dtype.startswith("complex"):
        return [0.0, 0.0]
    return 0.0 if dtype.startswith("float") else 0

"""Writing a Minari data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diskbuffer.errors import InputError
from diskbuffer.formats.minari.arrow_target import ArrowWriter
from diskbuffer.formats.minari.hdf5_target import Hdf5Writer
from diskbuffer.formats.minari.metadata import OWN_NAMES
from diskbuffer.formats.minari.plan import Plan, is_complex
from diskbuffer.plugin import Contents, Writer

_CODECS = {"hdf5": ("lzf", "gzip", "none"), "arrow": ("lz4", "zstd", "none"), "parquet": ("snappy", "lz4", "zstd", "none")}


def losses(contents: Contents, **_: object) -> Mapping[str, str]:
    """Return what a data set cannot hold."""
    left = [path for path, column in contents.columns.items() if is_complex(column)]
    lost = {"complex": f"spaces have no complex numbers, and these columns are left out: {', '.join(left)}"} if left else {}
    if taken := sorted(OWN_NAMES & {*contents.values}):
        lost["values"] = f"Minari has these names for metadata of its own, and the values are left out: {', '.join(taken)}"
    return lost


def write(
    path: Path, contents: Contents, *, data_format: str = "hdf5", dataset_id: str | None = None, compression: str | None = None
) -> Writer:
    """Begin a data set, or go on with one.

    Parameters
    ----------
    path : pathlib.Path
        Where ``data`` is made, as Minari has it in its directory of data sets.
    contents : Contents
    data_format : {"hdf5", "arrow", "parquet"}
    dataset_id : str, optional
        Such as "mine/pong/expert-v0". By default the one that was imported, or one made of the environment's.
    compression : str, optional
        "lzf" (h5py's own, the default), "gzip" or "none" with HDF5; "lz4" (the default), "zstd" or "none" with Arrow; with
        Parquet also "snappy", its default. Minari reads all of them.

    Raises
    ------
    InputError
        An option is none of these, or there is no single reward, no observation or no action.
    """
    if data_format not in _CODECS:
        raise InputError(f"data_format must be one of {', '.join(_CODECS)}, found {data_format!r}")
    codecs = _CODECS[data_format]
    if compression is not None and compression not in codecs:
        raise InputError(f"compression must be one of {', '.join(codecs)} with {data_format}, found {compression!r}")
    plan, codec = Plan(contents, dataset_id), compression or codecs[0]
    directory = path / "data"
    directory.mkdir(parents=True, exist_ok=True)
    if data_format == "hdf5":
        return Hdf5Writer(directory, plan, codec)
    return ArrowWriter(directory, plan, data_format, codec)

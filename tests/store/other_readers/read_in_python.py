"""Read arrays with a library that has an environment of its own: read_in_python.py LIBRARY OUT < ARRAYS

ARRAYS is a JSON list of pairs: a store, and an array's path in it. The bytes of array number i, in C order and little-endian, are
written to OUT/i. The last line that is printed is JSON: the library's `version`, and of each array its `dtype` and `shape`, or
the `error` of reading it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Read = Callable[[str, str], Any]  # a store, and an array's path in it


def zarrista() -> tuple[str, Read]:
    """The Rust crate zarrs, from the metadata to the values."""
    import zarrista
    from zarrista.store import FilesystemStore

    return zarrista.__version__, lambda store, path: zarrista.Array.open(FilesystemStore(store), f"/{path}")[...].to_numpy()


def z5() -> tuple[str, Read]:
    """A library in C++."""
    import z5py

    return z5py.__version__, lambda store, path: z5py.File(store, mode="r")[path][...]


def gdal() -> tuple[str, Read]:
    """GDAL's classic interface, through rasterio: an array is one band, or as many as its first axes have indices."""
    import rasterio

    warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)

    def read(store: str, path: str) -> Any:
        with rasterio.open(f'ZARR:"{store}/{path}"') as found:
            shape = json.loads((Path(store) / path / "zarr.json").read_bytes())["shape"]
            return found.read().reshape(shape)

    return rasterio.__gdal_version__, read


def napari() -> tuple[str, Read]:
    """The viewer's own reader, as when a directory is dropped on its window; without a window."""
    import napari
    from napari.components import ViewerModel
    from napari.plugins import _initialize_plugins

    _initialize_plugins()  # as the window does

    def read(store: str, path: str) -> Any:
        layers = ViewerModel().open(f"{store}/{path}", plugin="napari")
        if len(layers) != 1:
            raise TypeError(f"{len(layers)} layers of one array")
        return np.asarray(layers[0].data)

    return napari.__version__, read


def main(library: str, out: str) -> None:
    """Read all arrays that standard input names."""
    version, read = {"zarrista": zarrista, "z5": z5, "gdal": gdal, "napari": napari}[library]()
    arrays: list[dict[str, Any]] = []
    for number, (store, path) in enumerate(json.load(sys.stdin)):
        try:
            found = np.ascontiguousarray(read(store, path))
        except Exception as error:  # noqa: BLE001  each has errors of its own; the test says which it expects
            arrays.append({"error": f"{type(error).__name__}: {error}"})
            continue
        (Path(out) / str(number)).write_bytes(found.astype(found.dtype.newbyteorder("<"), copy=False).tobytes())
        arrays.append({"dtype": found.dtype.name, "shape": found.shape})
    print(json.dumps({"version": version, "arrays": arrays}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The codec ``diskbuffer.webp`` for zarr-python, and all that reads through it: xarray, dask.

Zarr finds it by an entry point, once diskbuffer is installed. It reads chunks of one picture each, as
`diskbuffer.store.format.pictures` describes them, and writes them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer

from diskbuffer.errors import CorruptionError, SchemaError
from diskbuffer.schema.schema import Column
from diskbuffer.store.format import codec, pictures


@dataclass(frozen=True)
class WebP(ArrayBytesCodec):
    """Pictures, (1, height, width, 3) of uint8, as WebP files.

    Parameters
    ----------
    quality : int
        From 1 to 100; of what is written.
    """

    is_fixed_size = False
    quality: int = 90

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what the metadata say."""
        return cls(int(data.get("configuration", {}).get("quality", 90)))

    def to_dict(self) -> dict[str, Any]:
        """Return what the metadata say."""
        return {"name": pictures.CODEC, "configuration": {"quality": self.quality}}

    def validate(self, *, shape: Any, dtype: Any, **_: Any) -> None:
        """Raise where an array cannot have this codec."""
        if len(shape) != 4 or dtype.to_native_dtype() != np.uint8:
            raise SchemaError(
                f"the codec {pictures.CODEC} is for pictures, (rows, height, width, 3) of uint8, found {shape} of {dtype}"
            )

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise, as for all codecs whose size depends on the data."""
        raise NotImplementedError

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = await asyncio.to_thread(self._decoded, chunk_bytes.to_bytes(), chunk_spec)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(values)

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        data = await asyncio.to_thread(pictures.encode, chunk_array.as_numpy_array().tobytes(), self._column(chunk_spec))
        return chunk_spec.prototype.buffer.from_bytes(data[: -codec.CHECKSUM])  # which is Zarr's own codec, crc32c

    def _column(self, chunk_spec: ArraySpec) -> Column:
        rows, *shape = chunk_spec.shape
        if rows != 1:
            raise SchemaError(f"a chunk of the codec {pictures.CODEC} is one picture, found chunks of {rows}")
        return Column(tuple(shape), chunk_spec.dtype.to_native_dtype(), codec=f"webp:{self.quality}")

    def _decoded(self, data: bytes, chunk_spec: ArraySpec) -> Any:
        column = self._column(chunk_spec)
        values = np.zeros(column.row_bytes, np.uint8)
        if wrong := pictures.decode_body(data, column, values):
            raise CorruptionError(f"a chunk of the codec {pictures.CODEC}: {codec.REASONS[wrong]}")
        return values.reshape(chunk_spec.shape)

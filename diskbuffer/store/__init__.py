"""Bytes on disk: a Zarr v3 group that stock tools read at every moment. Knows nothing of learning."""

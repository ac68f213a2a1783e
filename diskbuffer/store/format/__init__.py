"""The format on disk, as bytes and JSON. Nothing here reads or writes a file."""

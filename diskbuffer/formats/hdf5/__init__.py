"""HDF5: files of others, opened with care, and the formats that are made of them."""

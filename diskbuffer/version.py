"""The package's version; that of the format on disk is apart, in `diskbuffer.store.format.layout`."""

__version__ = "0.1.0"

"""Minari: data sets of offline reinforcement learning, both ways and bit by bit: in HDF5, and from Arrow and Parquet."""

from diskbuffer.formats.minari.source import MinariSource
from diskbuffer.formats.minari.target import MinariWriter, losses
from diskbuffer.plugin import Format

MINARI = Format("minari", "Farama's Minari: HDF5, Arrow, Parquet", MinariSource, MinariWriter, losses, values=True)

__all__ = ["MINARI"]

"""Minari: data sets of offline reinforcement learning, in HDF5, Arrow or Parquet, both ways and bit by bit."""

from diskbuffer.formats.minari.source import MinariSource
from diskbuffer.formats.minari.target import losses, write
from diskbuffer.plugin import Format

MINARI = Format("minari", "Farama's Minari: HDF5, Arrow, Parquet", MinariSource, write, losses, values=True)

__all__ = ["MINARI"]

"""Replay buffers beside ours, each filled with the same steps and sampled at its best settings, in a process of its own."""

from __future__ import annotations

from bench.peers.cpprb import Cpprb
from bench.peers.cpprb import MemoryMapped as CpprbMemoryMapped
from bench.peers.flashbax import Flashbax
from bench.peers.lance import Lance
from bench.peers.memmap import Memmap
from bench.peers.ours import Diskbuffer, DiskbufferLoader, Numpy
from bench.peers.peer import Peer
from bench.peers.sb3 import ExtraBuffers, OptimizedMemory, StableBaselines3
from bench.peers.tianshou import Stacking, Tianshou
from bench.peers.torchrl import MemoryMapped, MemoryMappedPrefetching, Prefetching, TorchRL
from bench.peers.zarr_readers import Tensorstore, TensorstoreUncached, ZarrPython, Zarrs

__all__ = ["PEERS", "Peer"]

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        *(Diskbuffer, DiskbufferLoader, Numpy),
        *(StableBaselines3, OptimizedMemory, ExtraBuffers),
        *(TorchRL, Prefetching, MemoryMapped, MemoryMappedPrefetching),
        *(Tianshou, Stacking, Cpprb, CpprbMemoryMapped, Flashbax),
        *(Memmap, Lance, Tensorstore, TensorstoreUncached, Zarrs, ZarrPython),
    )
}

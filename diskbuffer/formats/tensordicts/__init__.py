"""Memory-mapped TensorDicts: what TorchRL's replay buffers dump, and `TensorDict.memmap` writes."""

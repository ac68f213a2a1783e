"""Replay buffers of diffusion_policy and of UMI: Zarr v2, as a directory or in a zip."""

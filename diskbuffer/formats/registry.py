"""Which formats there are: ours, and those that other packages register."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points

from diskbuffer.errors import InputError
from diskbuffer.plugin import Format

GROUP = "diskbuffer.formats"  # of entry points, each the place of a `Format`: "package.module:NAME"

# Where each of ours is. A module is imported when its format is asked for.
OURS: dict[str, str] = {
    "d4rl": "diskbuffer.formats.hdf5.d4rl:D4RL",
    "diffusion_policy": "diskbuffer.formats.zarr2.formats:DIFFUSION_POLICY",
    "dreamer": "diskbuffer.formats.npz.dreamer:DREAMER",
    "drqv2": "diskbuffer.formats.npz.drqv2:DRQV2",
    "lerobot": "diskbuffer.formats.lerobot:LEROBOT",
    "libero": "diskbuffer.formats.hdf5.libero:LIBERO",
    "maniskill": "diskbuffer.formats.hdf5.maniskill:MANISKILL",
    "minari": "diskbuffer.formats.minari:MINARI",
    "ogbench": "diskbuffer.formats.npz.ogbench:OGBENCH",
    "rlds": "diskbuffer.formats.rlds:RLDS",
    "robomimic": "diskbuffer.formats.hdf5.robomimic:ROBOMIMIC",
    "sb3": "diskbuffer.formats.sb3:SB3",
    "tensordict": "diskbuffer.formats.tensordicts.formats:TENSORDICT",
    "umi": "diskbuffer.formats.zarr2.formats:UMI",
    "video": "diskbuffer.formats.video:VIDEO",
    "webdataset": "diskbuffer.formats.webdataset:WEBDATASET",
}


def names() -> tuple[str, ...]:
    """Return the names of all formats, ours first."""
    return (*OURS, *sorted({point.name for point in entry_points(group=GROUP)} - OURS.keys()))


def find(name: str) -> Format:
    """Return a format by its name; an InputError where there is none such."""
    if name in OURS:
        module, _, attribute = OURS[name].partition(":")
        entry = getattr(importlib.import_module(module), attribute)
    else:
        points = [point for point in entry_points(group=GROUP) if point.name == name]
        if not points:
            near = difflib.get_close_matches(name, names(), 1)
            raise InputError(
                f"there is no format {name!r}{f' (did you mean {near[0]!r}?)' if near else ''}. There are {', '.join(names())}"
            )
        entry = points[0].load()
    if not isinstance(entry, Format):
        raise InputError(f"what is registered as the format {name!r} must be a diskbuffer.formats.Format, found {entry!r}")
    return entry

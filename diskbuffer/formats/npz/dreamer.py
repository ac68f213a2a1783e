"""The replays of DreamerV3, DreamerV2 and DreamerV1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diskbuffer.formats.npz.dreamer_reading import DreamerSource
from diskbuffer.formats.npz.dreamer_writing import write
from diskbuffer.plugin import Contents, Format


def losses(contents: Contents, *, version: int = 3, **_: Any) -> Mapping[str, str]:
    """Return what Dreamer's files cannot hold."""
    lost = {}
    if contents.tags:
        lost["tags"] = "Dreamer's files have no names for episodes"
    if contents.derived:
        lost["derived"] = f"{', '.join(sorted(contents.derived))}: computed columns become columns like all others"
    if contents.n_envs > 1 and version == 2:
        lost["streams"] = "files of single episodes do not tell which environment each is of"
    return lost


DREAMER = Format("dreamer", "replays of DreamerV3 (chunks) and DreamerV2 (episodes), .npz", DreamerSource, write, losses)

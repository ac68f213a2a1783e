"""The two formats: diffusion_policy's, and UMI's, whose pictures are JPEG XL in a zip."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diskbuffer.formats.zarr2.reading import ZarrSource
from diskbuffer.formats.zarr2.writing import ZarrWriter, is_picture
from diskbuffer.plugin import Contents, Format, Writer


def _write(path: Path, contents: Contents, *, zip: bool = False) -> Writer:
    return ZarrWriter(path, contents, zip=zip)


def _write_umi(path: Path, contents: Contents, *, zip: bool = True, lossy: bool = False) -> Writer:
    return ZarrWriter(path, contents, zip=zip, pictures=True, lossy=lossy)


def _losses(contents: Contents, **_: Any) -> Mapping[str, str]:
    lost = {}
    if contents.final:
        lost["final_obs"] = "episodes of T steps have T observations; the final one, after the last action, has no place"
    if contents.tags:
        lost["tags"] = "episodes have no names"
    if contents.derived:
        lost["derived"] = f"{', '.join(sorted(contents.derived))}: computed columns become columns like all others"
    return lost


def _losses_of_umi(contents: Contents, *, lossy: bool = False, **_: Any) -> Mapping[str, str]:
    pictures = [path for path, column in contents.columns.items() if lossy and is_picture(path, column)]
    lost = {"pictures": f"{', '.join(pictures)}: compressed as UMI does, with losses that are hard to see"} if pictures else {}
    return {**_losses(contents), **lost}


DIFFUSION_POLICY = Format("diffusion_policy", "replay buffers of diffusion_policy, Zarr v2", ZarrSource, _write, _losses)
UMI = Format("umi", "replay buffers of UMI, Zarr v2 with JPEG XL", partial(ZarrSource, umi=True), _write_umi, _losses_of_umi)

"""The machine that figures are of: its processor, memory and disk, and the versions of what was measured."""

from __future__ import annotations

import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    *("diskbuffer", "numpy", "torch", "numcodecs", "zarr", "zarrs", "tensorstore", "stable-baselines3"),
    *("sb3-extra-buffers", "torchrl", "tianshou", "cpprb", "flashbax", "jax", "memmap-replay-buffer", "pylance"),
    *("gymnasium", "ale-py", "box2d", "mujoco"),
)


def versions() -> dict[str, str]:
    """Return the versions of what is installed, by package."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "disk": _disk(Path(tempfile.gettempdir())),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def busy() -> float:
    """Return how many programs want to run, on average of the last minute; this one counts as one, or as its threads."""
    return os.getloadavg()[0]


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _disk(path: Path) -> str:
    """Return what kind of disk holds a path: its file system, and whether it rotates, where the system tells."""
    mounted = [each for each in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(each.mountpoint)]
    system = max(mounted, key=lambda each: len(each.mountpoint)).fstype if mounted else "unknown file system"
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for queue in (block / "queue", block.resolve().parent / "queue"):
        if (queue / "rotational").exists():
            if queue.resolve().parent.name.startswith(("vd", "xvd")):
                return f"{system}, virtual"  # which calls itself rotating, whatever is below
            return f"{system}, {'rotating' if (queue / 'rotational').read_text().strip() == '1' else 'solid state'}"
    return f"{system}, in memory" if system == "tmpfs" else system

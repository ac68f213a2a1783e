"""Build the native code: C++17 kernels, bound by Cython. All else about the package is in pyproject.toml."""

import hashlib
from pathlib import Path
from typing import Any

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("diskbuffer/native")
SUFFIXES = {".pyx", ".pxd", ".hpp", ".cpp"}
# No floating-point operation is fused with another, so results are the same bits on every machine.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]


def sources_hash() -> str:
    """Return a hash of all native sources, which ``diskbuffer.native`` compares when it is imported from a checkout."""
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in sources())).hexdigest()


def sources() -> list[Path]:
    """Return all native sources, in order."""
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in SUFFIXES)


class BuildNative(build_ext):
    """Build, and say in one sentence what is missing where that fails."""

    def build_extensions(self) -> None:
        """Compile the modules, several at a time."""
        try:
            super().build_extensions()
        except Exception as error:
            raise SystemExit(
                f"diskbuffer's native code could not be compiled ({error}): it needs a C++17 compiler and Python's headers "
                "(on Debian and Ubuntu: apt install g++ python3-dev)"
            ) from error


def kernels_of(module: Path) -> list[str]:
    """Return the C++ files that a module of Cython binds: those that its comment ``# kernels: NAME NAME`` names."""
    lines = [line for line in module.read_text().splitlines() if line.startswith("# kernels:")]
    return [name for line in lines for name in line.removeprefix("# kernels:").split()]


def extensions() -> list[Any]:
    """Return a module for each file of Cython."""
    shared = [str(path) for path in sources() if path.suffix in {".hpp", ".pxd"}]
    macros = [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")]
    found = []
    for module in sorted(NATIVE.glob("*.pyx")):
        name = module.stem
        files = [str(module), *(str(NATIVE / "kernels" / f"{kernel}.cpp") for kernel in kernels_of(module))]
        own = [("DISKBUFFER_SOURCES", f'"{sources_hash()}"')] if name == "build" else []
        depends = list(map(str, sources())) if name == "build" else shared
        found.append(
            Extension(
                f"diskbuffer.native.{name}",
                files,
                include_dirs=[str(NATIVE / "kernels"), numpy.get_include()],
                define_macros=[*macros, *own],
                extra_compile_args=FLAGS,
                language="c++",
                depends=depends,
            )
        )
    return cythonize(found, build_dir="build/cython", language_level=3, compiler_directives={"embedsignature": True})


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative}, options={"build_ext": {"parallel": 2}})

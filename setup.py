"""Build the native code: C++17 kernels, bound by Cython. All else about the package is in pyproject.toml."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("diskbuffer/native")
SOURCES = runpy.run_path(str(NATIVE / "sources.py"))  # the package cannot be imported before it is built
sources = SOURCES["native_sources"](NATIVE)
sources_hash = SOURCES["hash_of"](sources)
# No floating-point operation is fused with another, so results are the same bits on every machine.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]


def is_built() -> bool:
    """Return whether the checkout holds what would be built; the module `build` holds the hash of what it was built from."""
    modules = [path.with_suffix(sysconfig.get_config_var("EXT_SUFFIX")) for path in NATIVE.glob("*.pyx")]
    built = NATIVE / f"build{sysconfig.get_config_var('EXT_SUFFIX')}"
    return all(module.exists() for module in modules) and sources_hash.encode() in built.read_bytes()


class BuildNative(build_ext):
    """Build what the checkout does not hold yet, several modules at a time; say what is missing where that fails."""

    def run(self) -> None:
        """Build, but for a checkout in which that was done."""
        if not ((self.inplace or self.editable_mode) and is_built()):
            super().run()

    def build_extensions(self) -> None:
        """Make C++ of Cython, and compile all."""
        for module, made in zip(
            self.extensions, cythonize(self.extensions, build_dir="build/cython", language_level=3, quiet=True), strict=True
        ):
            module.sources = made.sources
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


def extension(module: Path) -> Any:
    """Return what a module of Cython is built from."""
    depends = [path for path in sources if module.stem == "build" or path.suffix in {".hpp", ".pxd"}]
    return Extension(
        f"diskbuffer.native.{module.stem}",
        [str(module), *(str(NATIVE / "kernels" / f"{kernel}.cpp") for kernel in kernels_of(module))],
        include_dirs=[str(NATIVE / "kernels"), numpy.get_include()],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
            *([("DISKBUFFER_SOURCES", f'"{sources_hash}"')] if module.stem == "build" else []),
        ],
        extra_compile_args=FLAGS,
        language="c++",
        depends=[str(path) for path in depends if path != module],
    )


setup(
    ext_modules=[extension(module) for module in sorted(NATIVE.glob("*.pyx"))],
    cmdclass={"build_ext": BuildNative},
    options={"build_ext": {"parallel": 2}},
)

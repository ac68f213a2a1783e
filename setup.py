"""Build the native code: C++17 kernels in one static library, and modules of Cython that bind them. Name the repository."""

import fcntl
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OWNER = "diskbuffer"  # the only place with the repository's address
REPOSITORY = f"https://github.com/{OWNER}/diskbuffer"
NATIVE = Path("diskbuffer/native")
SOURCES = runpy.run_path(str(NATIVE / "sources.py"))  # the package cannot be imported before it is built
sources = SOURCES["native_sources"](NATIVE)
sources_hash = SOURCES["hash_of"](sources)
# No floating-point operation is fused with another, so results are the same bits on every machine.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
# Load every module, with all that it refers to, as importing it does: initializing them needs packages that are installed later.
LOAD = """
import ctypes, os, sys
from importlib.util import module_from_spec, spec_from_file_location
build, *modules = sys.argv[1:]
for module in modules:
    ctypes.PyDLL(module, os.RTLD_NOW)
spec = spec_from_file_location("diskbuffer.native.build", build)
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(module.SOURCES)
"""


def readme() -> str:
    """Return the README as package indexes show it, with links to the files at the release's tag."""
    tag = f"v{runpy.run_path('diskbuffer/version.py')['__version__']}"

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"  # a picture, or a page
        return f"{link[1]}({urljoin(f'{REPOSITORY}/{kind}/{tag}/README.md', link[2])})"

    return re.sub(r"(!?\[[^]]*\])\(([^)\s]+)\)", absolute, Path("README.md").read_text(encoding="utf-8"))


def loading_error(directory: Path) -> str:
    """Load the modules of a directory in another process; return why they are not what the sources give, or nothing."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    names = ["build", *(path.stem for path in sorted(NATIVE.glob("*.pyx")))]
    command = [sys.executable, "-c", LOAD, *(str(directory.resolve() / f"{name}{suffix}") for name in names)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
    return "" if done.stdout.strip() == sources_hash else "they were built from other sources"


class BuildNative(build_ext):
    """Build what the checkout does not hold yet, and load it before it counts as built."""

    def run(self) -> None:
        """Build, one process after the other, but for a checkout in which that was done, or is being done by make."""
        if self.editable_mode and "MAKE_BUILDS_NATIVE" in os.environ:
            return
        Path("build").mkdir(exist_ok=True)
        with open("build/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.inplace or self.editable_mode) or loading_error(NATIVE):
                self.build()

    def build(self) -> None:
        """Build, and load what was built."""
        self.force = True  # whatever is there did not pass
        super().run()
        built = Path(self.get_ext_fullpath("diskbuffer.native.build")).parent
        if error := loading_error(built):
            for module in built.glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
                module.unlink()
            raise SystemExit(f"diskbuffer's native code was built, and cannot be loaded: {error}")

    def build_extensions(self) -> None:
        """Compile the kernels, make C++ of Cython, and compile and link that with them."""
        try:
            library = self.build_kernels(self.build_temp)
            made = cythonize(self.extensions, build_dir="build/cython", language_level=3, quiet=True)
            for module, cpp in zip(self.extensions, made, strict=True):
                module.sources, module.extra_objects = cpp.sources, [library]
            super().build_extensions()
        except Exception as error:
            raise SystemExit(
                f"diskbuffer's native code could not be compiled ({error}): it needs a C++17 compiler and Python's headers "
                "(on Debian and Ubuntu: apt install g++ python3-dev)"
            ) from error

    def build_kernels(self, directory: str) -> str:
        """Compile each kernel once, several at a time, and make a library of all."""

        def compile_kernel(source: Path) -> str:
            (made,) = self.compiler.compile([str(source)], directory, extra_postargs=FLAGS)
            return str(made)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(compile_kernel, sorted((NATIVE / "kernels").glob("*.cpp"))))
        library = Path(directory) / self.compiler.library_filename("kernels")
        library.unlink(missing_ok=True)  # or what is no kernel any more would stay in it
        self.compiler.create_static_lib(objects, "kernels", directory)
        return str(library)


def extension(module: Path) -> Any:
    """Return what a module of Cython is built from, but for the kernels."""
    return Extension(
        f"diskbuffer.native.{module.stem}",
        [str(module)],
        include_dirs=[str(NATIVE / "kernels"), numpy.get_include()],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
            *([("DISKBUFFER_SOURCES", f'"{sources_hash}"')] if module.stem == "build" else []),
        ],
        extra_compile_args=FLAGS,
        language="c++",
    )


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": f"https://{OWNER}.github.io/diskbuffer",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    ext_modules=[extension(module) for module in sorted(NATIVE.glob("*.pyx"))],
    cmdclass={"build_ext": BuildNative},
    options={"build_ext": {"parallel": 2}},
)

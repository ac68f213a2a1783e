"""Sphinx's settings: `make docs` builds the pages in docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from notebook import write_notebook

from diskbuffer.version import __version__

project = "diskbuffer"
author = "The diskbuffer authors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say types, as numpy's do
# What the extra [docs] does not bring.
autodoc_mock_imports = ["gymnasium", "h5py", "ray", "sb3_contrib", "stable_baselines3", "tensordict", "tianshou", "torchrl"]
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

intersphinx_mapping = {}  # nothing is fetched while the pages are built

html_theme = "furo"
html_title = f"diskbuffer {version}"
html_static_path: list[str] = []
copybutton_prompt_text = "$ "


def setup(app: Any) -> None:
    """Have the tutorial written as a notebook, beside its page."""

    def write(app: Any, error: Exception | None) -> None:
        if error is None:
            write_notebook(Path(__file__).with_name("tutorial.md"), Path(app.outdir, "tutorial.ipynb"))

    app.connect("build-finished", write)

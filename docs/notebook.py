"""Pages as notebooks: their examples are cells to run, and all else, commands among it, is text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def notebook_of(page: str) -> dict[str, Any]:
    """Return a page of Markdown as a notebook (nbformat 4.5)."""
    cells = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", page, flags=re.DOTALL | re.MULTILINE)):
        code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
        if part.strip():
            kind = code if number % 2 else {"cell_type": "markdown"}
            cells.append({"id": f"cell-{number}", "metadata": {}, "source": part.strip(), **kind})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def write_notebook(page: Path, notebook: Path) -> None:
    """Write a page as a notebook."""
    notebook.parent.mkdir(parents=True, exist_ok=True)
    notebook.write_text(json.dumps(notebook_of(page.read_text()), indent=1) + "\n")

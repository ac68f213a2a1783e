"""The C functions that other packages carry."""

from __future__ import annotations

import pytest

from diskbuffer.native.c_functions import address


@pytest.mark.parametrize("module", ["numcodecs.blosc", "numcodecs.is_not_installed"])
def test_a_c_function_that_is_missing_is_told_with_what_to_install(module: str) -> None:
    with pytest.raises(ImportError, match=rf"no_such_function inside {module}.*pip install .* numcodecs$"):
        address(module, "no_such_function")

"""Whether draws are as even as chance makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Z = 4.0  # standard deviations, about one in 16,000 on either side; the seeds are fixed, so that it passes always or never


def assert_uniform(drawn: npt.NDArray[Any], among: npt.NDArray[Any]) -> None:
    """Test by chi-square, with the Wilson-Hilferty approximation, that draws are as even as chance makes them; not more so."""
    assert len(np.unique(among)) == len(among)
    values, counts = np.unique(drawn, return_counts=True)
    assert np.isin(values, among).all(), f"{np.setdiff1d(values, among)} cannot be sampled"
    observed = np.zeros(len(among))
    observed[np.searchsorted(np.sort(among), values)] = counts
    expected = len(drawn) / len(among)
    assert expected >= 20, "too few draws for this test"
    statistic, freedom = float(((observed - expected) ** 2).sum() / expected), len(among) - 1
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    assert abs(deviation) < Z, f"chi-square is {statistic:.1f} at {freedom} degrees of freedom"

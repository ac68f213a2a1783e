"""Benchmarks: seeded, beside the peers in one run, medians; JSON out. Figures are of this machine: compare ratios."""

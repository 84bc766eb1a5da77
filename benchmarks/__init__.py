"""Benchmarks: each prints a table of ratios, with a peer or a limit measured in the same run."""

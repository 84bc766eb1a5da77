"""Benchmarks: each prints a table of ratios to a baseline measured in the same run."""

"""Baselines for training: plain PyTorch, Flower and pfl, each in its own process.

Flower and pfl run in virtual environments without our packages, so these modules do not import them.
"""

"""Safetensors files: checking what was received, reading it in blocks, writing models."""

"""What the trainer is measured beside: bare PyTorch, Flower and pfl, each in a process of its own.

Flower and pfl have environments of their own, without our packages: nothing here imports those.
"""

"""A device with the client library: python device.py URL CLIENT_ID KEY [ROUNDS]."""

import sys

import numpy as np

from fedcs_client import Device, Resources

inputs = np.random.default_rng().normal(size=(200, 8))
labels = inputs.sum(axis=1) > 0  # on which side of a plane each point is


def train(model, assignment):
    """Logistic regression by gradient descent; the model has one tensor, ``w``."""
    weights = model["w"].astype(np.float64)
    for _ in range(assignment.local_epochs):
        wrong = (inputs @ weights > 0).astype(float) - labels
        weights -= assignment.learning_rate * (wrong @ inputs) / len(inputs)
    return {"w": weights.astype(np.float32)}


resources = Resources(throughput_bps=8e6, compute_samples_per_s=1e4, data_samples=len(inputs))
device = Device(*sys.argv[1:4], report=lambda: resources, train=train)
device.run(rounds=int(sys.argv[4]) if len(sys.argv) > 4 else None)

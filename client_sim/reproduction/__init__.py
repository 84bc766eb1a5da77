"""The paper's experiments, repeated through the real service and compared with what was published."""

"""The FedCS operator service itself: no web framework, no task queue."""

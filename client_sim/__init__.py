"""Clients of the service over HTTP: a typed API client, and a simulator of a cell full of devices."""

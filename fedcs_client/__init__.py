"""Client library for devices and orchestrators: typed calls, retries, events and a complete device."""

from fedcs_client.api import Api, ApiError, AsyncApi, UnreachableError
from fedcs_client.device import Device, DeviceEvaluation, Resources, Trained

__all__ = [
    "Api",
    "ApiError",
    "AsyncApi",
    "Device",
    "DeviceEvaluation",
    "Resources",
    "Trained",
    "UnreachableError",
]

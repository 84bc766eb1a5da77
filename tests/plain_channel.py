"""A plain simulation of granting the channel, to compare the service and the simulator with."""

from dataclasses import dataclass

import numpy as np


@dataclass
class PlainDevice:
    """A device: when its update is done, the planned and the actual upload; in whole nanoseconds."""

    order: int
    ready_ns: int
    planned_ns: int
    upload_ns: int
    says_throughput: bool
    lapses: int = 0


def plain_uploads(devices: list[PlainDevice], deadline_ns: int) -> dict[int, int]:
    """When the uploads end that end in time, by the order of their devices.

    A device whose grant has lapsed is ready again at once, and says its throughput.
    """
    left, ends, now = list(devices), {}, 0
    while left:
        now = max(now, min(device.ready_ns for device in left))
        left = [
            device for device in left if device.ready_ns > now or not _is_too_late(device, now, deadline_ns)
        ]
        ready = [device for device in left if device.ready_ns <= now]
        if now >= deadline_ns:
            break
        if not ready:
            continue
        next_ = min(ready, key=_turn)
        expected_ns = next_.upload_ns if next_.says_throughput else next_.planned_ns
        if next_.upload_ns < 2 * expected_ns:
            now += next_.upload_ns
            left.remove(next_)
            if now < deadline_ns:
                ends[next_.order] = now
        else:
            now += 2 * expected_ns
            next_.ready_ns, next_.lapses, next_.says_throughput = now, next_.lapses + 1, True
    return ends


def _is_too_late(device: PlainDevice, now: int, deadline_ns: int) -> bool:
    return device.says_throughput and now + device.upload_ns >= deadline_ns


def _turn(device: PlainDevice) -> tuple[int, bool, int, int]:
    known = device.says_throughput
    return device.lapses, not known, device.upload_ns if known else 0, device.order


def random_devices(seed: int) -> tuple[list[PlainDevice], int]:
    """The devices of a random round, and its deadline: some fit, some do not."""
    rng = np.random.default_rng([0x67726E74, seed])
    count = int(rng.integers(1, 16))
    planned = rng.integers(1, 30_000_000_000, count)
    speeds = np.maximum(rng.normal(1, 0.4, count), 0.05)
    ready = rng.integers(0, 120_000_000_000, count)
    share = rng.choice([0.0, 0.5, 1.0])
    devices = [
        PlainDevice(
            order,
            int(ready[order]),
            int(planned[order]),
            int(planned[order] / speeds[order]) + 1,
            bool(rng.random() < share),
        )
        for order in range(count)
    ]
    return devices, int(rng.integers(60_000_000_000, 200_000_000_000))

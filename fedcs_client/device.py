"""A device: its whole life around two functions of the user, one that reports and one that trains."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from fedcs_client import endpoints
from fedcs_client.api import Api
from fedcs_client.encoding import decode_model, encode_update
from fedcs_client.retry import ApiError, UnreachableError
from services.contract.assignments import ReportAssignment, TrainAssignment, UpdateResponse
from services.contract.reports import ReportRequest
from services.domain.channel import ChannelState
from services.errors import BadTensorsError

Parameters = Mapping[str, npt.NDArray[Any]]
"""The tensors of a model, by name."""

_OUTAGE_PAUSE_S = 5.0
"""Pause after an outage that was longer than ``retry_timeout_s``."""
_MAX_REASON = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resources:
    """What a device reports."""

    throughput_bps: float
    compute_samples_per_s: float
    data_samples: int


@dataclass(frozen=True)
class DeviceEvaluation:
    """How good a model is on the device's own data."""

    accuracy: float
    loss: float | None
    samples: int


@dataclass(frozen=True)
class Trained:
    """Trained tensors, and how many samples they were trained on."""

    parameters: Parameters
    samples: int


class Device:
    """A device that takes part in federated training.

    ``report`` returns the device's resources. ``train`` gets the tensors of the model and the assignment, and
    returns the trained tensors, or ``Trained`` if it used fewer samples than reported; None declines the
    round. ``evaluate``, if given, measures every model before it is trained. Retries, resumed downloads,
    digests, encodings and the offset to the service's clock are handled here.

    A round is trained once. If the service refuses the update, the device logs the reason and declines the
    round. During an outage the device waits.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        key: str,
        *,
        report: Callable[[], Resources],
        train: Callable[[Parameters, TrainAssignment], Parameters | Trained | None],
        evaluate: Callable[[Parameters], DeviceEvaluation] | None = None,
        poll_s: float = 60.0,
        retry_timeout_s: float = 60.0,
    ) -> None:
        """``poll_s`` is how long each request for assignments waits for a change, at most 60."""
        self._api = Api(url, key, retry_timeout_s=retry_timeout_s)
        self._client_id = client_id
        self._report = report
        self._train = train
        self._evaluate = evaluate
        self._evaluated: set[tuple[str, int]] = set()
        self._poll_s = poll_s
        self._tried: set[str] = set()
        """Rounds whose assignment was done or refused."""
        self._stopping = Event()

    def run(self, rounds: int | None = None) -> int:
        """Report, then do every assignment until ``stop`` is called or so many updates were accepted.

        Returns the number of accepted updates.
        """
        accepted = 0
        has_reported = False
        known: endpoints.Assignments | None = None
        while not self._stopping.is_set() and (rounds is None or accepted < rounds):
            try:
                if not has_reported:
                    self._send_report(None)
                    has_reported = True
                found = self._api.send(endpoints.assignments(self._poll_s if known else 0.0, known))
                if found is known:
                    continue
                received_s = time.monotonic()
                self._tried &= {assignment.round_id for assignment in found.assignments}
                for assignment in found.assignments:
                    accepted += self._do(assignment, received_s)
                known = found
            except UnreachableError as error:
                _log.warning("%s", error)
                self._stopping.wait(min(self._poll_s, _OUTAGE_PAUSE_S))
                known = None
        return accepted

    def stop(self) -> None:
        """Let ``run`` return after the current poll or training; may be called from another thread.

        If the device waits for its upload slot, it declines the round.
        """
        self._stopping.set()

    def close(self) -> None:
        """Close all connections."""
        self._api.close()

    def _do(self, assignment: ReportAssignment | TrainAssignment, received_s: float) -> bool:
        """Do one assignment; whether an update was accepted."""
        round_id = assignment.round_id
        try:
            if isinstance(assignment, ReportAssignment):
                self._send_report(assignment.task_id)
                return False
            if round_id in self._tried or self._stopping.is_set():
                return False
            is_accepted = self._take_part(assignment, received_s)
        except (ApiError, BadTensorsError) as error:
            _log.warning("round %s: %s", round_id, error)
            is_accepted = False
            if isinstance(error, BadTensorsError) or error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                self._decline(round_id, str(error))
        self._tried.add(round_id)
        return is_accepted

    def _decline(self, round_id: str, reason: str) -> None:
        try:
            self._api.send(endpoints.decline_round(round_id, reason[:_MAX_REASON]))
        except ApiError as error:  # such as: the round was closed
            _log.info("round %s: %s", round_id, error)

    def _send_report(self, task_id: str | None) -> None:
        resources = self._report()
        self._api.send(
            endpoints.post_report(
                ReportRequest(
                    client_id=self._client_id,
                    task_id=task_id,
                    throughput_bps=resources.throughput_bps,
                    compute_samples_per_s=resources.compute_samples_per_s,
                    data_samples=resources.data_samples,
                )
            )
        )

    def _take_part(self, assignment: TrainAssignment, received_s: float) -> bool:
        """Download, train and upload in the slot; whether the update was accepted."""
        round_id = assignment.round_id
        received = self._api.download(endpoints.round_model(round_id), assignment.model_digest)
        model = load(decode_model(received, assignment))
        self._send_evaluation(assignment, model)
        began_s = time.monotonic()
        trained = self._train(model, assignment)
        update_s = time.monotonic() - began_s
        if trained is None:
            self._decline(round_id, "The device declined.")
            return False
        if not isinstance(trained, Trained):
            trained = Trained(trained, self._report().data_samples)
        # Not np.ascontiguousarray, which gives scalars the shape (1,).
        tensors = {name: np.asarray(tensor, order="C") for name, tensor in trained.parameters.items()}
        update = endpoints.upload_update(
            round_id,
            self._client_id,
            encode_update(save(tensors), received, assignment),
            trained.samples,
            encoding=assignment.update_encoding,
            update_s=update_s,
        )
        if assignment.channel is not None:
            return self._upload_when_granted(round_id, update)
        # By the service's clock: a device's own clock may be wrong.
        starts_s = received_s + (assignment.starts_in_s or 0.0)
        if self._stopping.wait(max(starts_s - time.monotonic(), 0.0)):
            self._decline(round_id, "The device was stopped.")
            return False
        self._api.send(update)
        return True

    def _upload_when_granted(self, round_id: str, update: endpoints.Call[UpdateResponse]) -> bool:
        """Upload when the channel is granted; whether the update was accepted."""
        while self._is_granted(round_id):
            try:
                self._api.send(update)
            except ApiError as error:
                if error.problem.cause != "CHANNEL_NOT_GRANTED":  # the grant has lapsed
                    raise
            else:
                return True
        return False

    def _is_granted(self, round_id: str) -> bool:
        """Say that the update is ready, and wait for the channel; false: it will not be granted."""
        ready = endpoints.mark_ready(round_id, throughput_bps=self._report().throughput_bps)
        state = self._api.send(ready).state
        known: endpoints.Assignments | None = None
        while state is ChannelState.WAITING and not self._stopping.is_set():
            known = self._api.send(endpoints.assignments(self._poll_s if known else 0.0, known))
            states = [
                assignment.channel
                for assignment in known.assignments
                if isinstance(assignment, TrainAssignment) and assignment.round_id == round_id
            ]
            state = states[0] if states and states[0] is not None else ChannelState.REFUSED
        if state is ChannelState.WAITING:
            self._decline(round_id, "The device was stopped.")
        return state is ChannelState.GRANTED

    def _send_evaluation(self, assignment: TrainAssignment, model: Parameters) -> None:
        version = (assignment.task_id, assignment.model_version)
        if self._evaluate is None or version in self._evaluated:
            return
        self._evaluated.add(version)
        measured = self._evaluate(model)
        loss = measured.loss if measured.loss is not None and math.isfinite(measured.loss) else None
        report = endpoints.report_evaluation(
            *version, accuracy=measured.accuracy, loss=loss, samples=measured.samples
        )
        try:
            self._api.send(report)
        except ApiError as error:  # such as: the device has evaluated the version before it was restarted
            _log.warning("evaluation of version %s of %s: %s", version[1], version[0], error)

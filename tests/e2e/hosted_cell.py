"""A small simulated cell whose devices train in the service's workers."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.cell import create_task, enrol, fresh_name, open_round, report
from tests.integration.rounds_setup import eventually, get_round, get_task, upload_as

PATIENCE_S = 300.0


@dataclass
class HostedCell:
    """Devices, and what each of them holds: device ``i`` has partition ``i``."""

    service: httpx.Client
    keys: dict[str, str]
    samples: dict[str, int]
    labels: dict[str, str]
    task_id: str = ""
    uploads: list[list[str]] = field(default_factory=list)
    """Who uploaded in each round, in slot order."""

    def start_task(self, **terms: object) -> dict[str, Any]:
        """Begin a task of these devices, and wait for its initial model."""
        given: dict[str, Any] = {"dataset": "generated", "round_deadline_s": 3600, **terms}
        self.task_id = create_task(self.service, labels=self.labels, **given)["task_id"]
        return self.task_in("ready", "failed")

    def task_in(self, *states: str) -> dict[str, Any]:
        """The task, once it is in one of these states."""

        def look() -> dict[str, Any] | None:
            task = get_task(self.service, self.task_id)
            return task if task["state"] in states else None

        return eventually(look, PATIENCE_S)

    def begin_round(self) -> dict[str, Any]:
        """Open a round, and ask for the training of every selected device."""
        opened = open_round(self.service, self.task_id)
        for slot in opened["schedule"]["slots"]:
            self.ask_training(opened["round_id"], slot["client_id"])
        return opened

    def ask_training(self, round_id: str, client_id: str) -> str:
        """Ask for a device's training; its id."""
        partition = list(self.keys).index(client_id)
        body = {"round_id": round_id, "client_id": client_id, "partition": partition}
        response = self.service.post("/trainings", json=body)
        assert response.status_code == 202, response.text
        training_id: str = response.json()["training_id"]
        return training_id

    def trained(self, round_id: str, client_id: str) -> bytes:
        """A device's update, once it is trained."""
        training_id = self.ask_training(round_id, client_id)  # asked again, it is the same
        training = self.training_over(training_id)
        assert training["state"] == "done", training
        return self.service.get(f"/trainings/{training_id}/update").content

    def training_over(self, training_id: str) -> dict[str, Any]:
        """A training, once it is done or has failed."""

        def look() -> dict[str, Any] | None:
            training: dict[str, Any] = self.service.get(f"/trainings/{training_id}").json()
            return training if training["state"] != "waiting" else None

        return eventually(look, PATIENCE_S)

    def send(self, opened: dict[str, Any], slot: dict[str, Any], update: bytes) -> httpx.Response:
        """Upload a device's update at the end of its slot."""
        client_id = slot["client_id"]
        headers = {
            "fedcs_elapsed_s": str(slot["window_end_s"]),
            "fedcs_data_samples": str(self.samples[client_id]),
        }
        return upload_as(
            self.service, self.keys[client_id], opened["round_id"], client_id, update=update, **headers
        )

    def finish_round(self, opened: dict[str, Any]) -> dict[str, Any]:
        """Upload what was trained; the round, once it is over."""
        slots = opened["schedule"]["slots"]
        for slot in reversed(slots):  # in the order opposite to the slots': it must not matter
            response = self.send(opened, slot, self.trained(opened["round_id"], slot["client_id"]))
            assert response.status_code == 201, response.text
        self.uploads.append([slot["client_id"] for slot in slots])
        return self.round_over(opened["round_id"])

    def round_over(self, round_id: str) -> dict[str, Any]:
        """The round, once it is aggregated or failed."""

        def look() -> dict[str, Any] | None:
            found = get_round(self.service, round_id)
            return found if found["ended_at"] else None

        return eventually(look, PATIENCE_S)

    def evaluated(self, version: int) -> dict[str, Any]:
        """The metrics of the round that made this version, once it is evaluated."""
        found = self.evaluated_or_not(version)
        assert found["evaluation_error"] is None, found
        return found

    def evaluated_or_not(self, version: int) -> dict[str, Any]:
        """The same, also if the evaluation has failed."""

        def look() -> dict[str, Any] | None:
            rounds = self.service.get(f"/tasks/{self.task_id}/metrics").json()["rounds"]
            found = [round_ for round_ in rounds if round_["model_version"] == version]
            known = found and (found[0]["accuracy"] is not None or found[0]["evaluation_error"])
            return found[0] if known else None

        return eventually(look, PATIENCE_S)

    def model(self, version: int) -> bytes:
        """A global model."""
        return self.service.get(f"/tasks/{self.task_id}/models/{version}").content


def hosted_cell(service: httpx.Client, samples: list[int]) -> HostedCell:
    """Enrol devices with so many samples each; all of them are quick enough for any round."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, len(samples), labels)
    held = dict(zip(keys, samples, strict=True))
    for place, (client_id, count) in enumerate(held.items()):
        report(service, client_id, data_samples=count, throughput_bps=1e6 * (1 + place % 3))
    return HostedCell(service, keys, held, labels)

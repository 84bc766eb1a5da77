"""Clients on the wire: their record, their share in running tasks, and implausible reports."""

from collections.abc import Mapping, Sequence

from services.contract.clients import (
    ClientResponse,
    ImplausibleFigureResponse,
    ParticipationResponse,
    TrackRecordResponse,
)
from services.domain.past_slots import find_cooldowns
from services.protocol.candidates import implausible_figures
from services.storage.clients import Client
from services.storage.database import Store


def client_response(store: Store, client: Client) -> ClientResponse:
    """One client."""
    return client_responses(store, [client])[client.client_id]


def client_responses(store: Store, clients: Sequence[Client]) -> Mapping[str, ClientResponse]:
    """Clients by their ids, in a fixed number of queries and one for each running task with a cooldown."""
    ids = [client.client_id for client in clients]
    records = store.clients.track_records(ids)
    tasks = _participation(store, clients)
    implausible = implausible_figures(store, clients)
    return {
        client.client_id: ClientResponse(
            client_id=client.client_id,
            labels=dict(client.labels),
            cell_id=client.cell_id,
            enrolled_at=client.enrolled_at,
            record=TrackRecordResponse.model_validate(records[client.client_id], from_attributes=True),
            tasks=tasks[client.client_id],
            implausible=[
                ImplausibleFigureResponse.model_validate(figure, from_attributes=True)
                for figure in implausible.get(client.client_id, ())
            ],
        )
        for client in clients
    }


def _participation(store: Store, clients: Sequence[Client]) -> Mapping[str, list[ParticipationResponse]]:
    """The running tasks that have selected each client."""
    found = store.slot_history.participation([client.client_id for client in clients])
    fractions = {
        in_task.task_serial: in_task.terms.request_fraction
        for of_client in found.values()
        for in_task in of_client
        if in_task.terms.cooldown
    }
    until = {serial: _cooldowns(store, serial, fractions[serial], list(found)) for serial in fractions}
    return {
        client.client_id: [
            ParticipationResponse(
                task_id=in_task.task_id,
                rounds=in_task.rounds,
                selected=in_task.selected,
                received=in_task.received,
                share=in_task.selected / in_task.rounds,
                cooldown_until_round=_if_later(
                    until.get(in_task.task_serial, {}).get(client.serial, 0), in_task.rounds
                ),
            )
            for in_task in found.get(client.client_id, ())
        ]
        for client in clients
    }


def _cooldowns(
    store: Store, task_serial: int, request_fraction: float, client_ids: Sequence[str]
) -> dict[int, int]:
    """The last round of each client's cooldown, by its serial."""
    undelivered = store.slot_history.undelivered(task_serial, client_ids)
    cooldowns = find_cooldowns(undelivered, request_fraction)
    return dict(zip(cooldowns.client.tolist(), cooldowns.until.tolist(), strict=True))


def _if_later(until_round: int, rounds: int) -> int | None:
    return until_round if until_round > rounds else None

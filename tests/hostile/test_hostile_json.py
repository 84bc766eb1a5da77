"""Every JSON body of the corpus is refused with a problem that names what is wrong."""

import json
import random

import httpx
import pytest

from tests.hostile.json_corpus import HostileBody, hostile_bodies
from tests.hostile.raw_http import address_of, bearer, exchange, request
from tests.integration.cell import enrol, enrol_one, resources
from tests.running_service import OPERATOR_KEY

CORPUS = hostile_bodies(resources("c1"), random.Random(8))


@pytest.mark.parametrize("body", CORPUS, ids=lambda body: body.kind)
def test_a_report_that_is_none_is_refused(body: HostileBody, service: httpx.Client) -> None:
    _, key = enrol_one(service)
    headers = {"content_type": "application/json", **bearer(key), **body.headers}
    answer = exchange(address_of(service), request("POST", "/reports", body.body, **headers))
    assert (answer.status, answer.problem["cause"]) == body.expected, answer
    assert len(answer.body) < 2000, "a problem does not repeat what was sent"


def test_an_operator_may_send_what_a_client_may_not(service: httpx.Client) -> None:
    """64 KiB is for a client's JSON; a batch of an operator is larger."""
    ids = list(enrol(service, 600))
    batch = json.dumps({"reports": [resources(client_id) for client_id in ids]})
    assert len(batch) > 64 * 1024
    assert service.post(
        "/reports/batch", content=batch, headers={"Content-Type": "application/json"}
    ).is_success


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/reports/batch", {"reports": [resources("c1")] * 10_001}),
        ("/clients/batch", {"clients": [{}] * 100_001}),
        (
            "/plans",
            {"round_deadline_s": 1, "model_size_bytes": 1, "candidates": [resources("c1")] * 100_001},
        ),
    ],
)
def test_lists_have_an_end(path: str, body: dict[str, object], service: httpx.Client) -> None:
    content = json.dumps(body).encode()
    headers = {"content_type": "application/json", **bearer(OPERATOR_KEY)}
    answer = exchange(address_of(service), request("POST", path, content, **headers))
    assert (answer.status, answer.problem["cause"]) == (422, "INVALID_REQUEST"), answer

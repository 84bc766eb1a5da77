"""Lists in pages, over real HTTP."""

import re

import httpx
import pytest

from tests.integration.cell import assert_problem, create_task, enrol, fresh_name, report

LISTS = ["/clients", "/keys", "/tasks", "/rounds"]


def links_of(response: httpx.Response) -> dict[str, str]:
    """The URLs in the ``Link`` header by what they are."""
    found = re.findall(r'<([^>]*)>; rel="(\w+)"', response.headers["link"])
    return {relation: url for url, relation in found}


def test_following_next_gives_every_item_once_and_in_order(service_on_each: httpx.Client) -> None:
    labels = {"zone": fresh_name("zone")}
    client_ids = list(enrol(service_on_each, 7, labels))
    parameters: dict[str, str | int] = {"label": f"zone={labels['zone']}", "per_page": 3}
    response = service_on_each.get("/clients", params=parameters)
    seen: list[str] = []
    pages = 1
    while True:
        assert response.headers["x-total-count"] == "7"
        seen += [client["client_id"] for client in response.json()]
        following = links_of(response).get("next")
        if following is None:
            break
        response = service_on_each.get(following)
        pages += 1
    assert seen == client_ids
    assert pages == 3


def test_links_name_the_first_previous_next_and_last_page(service: httpx.Client) -> None:
    zone = fresh_name("zone")
    enrol(service, 5, {"zone": zone, "kind": "bus & tram"})
    query: list[tuple[str, str | int | float | bool | None]] = [
        ("label", f"zone={zone}"),
        ("label", "kind=bus & tram"),
        ("per_page", 2),
        ("page", 2),
    ]
    response = service.get("/clients", params=query)
    links = {relation: httpx.URL(url) for relation, url in links_of(response).items()}
    assert {relation: url.params["page"] for relation, url in links.items()} == {
        "first": "1",
        "prev": "1",
        "next": "3",
        "last": "3",
    }
    for url in links.values():
        assert url.params["per_page"] == "2"
        assert url.params.get_list("label") == [f"zone={zone}", "kind=bus & tram"]
    assert len(service.get(links["last"]).json()) == 1


def test_the_only_page_has_no_neighbours(service: httpx.Client) -> None:
    response = service.get("/clients", params={"label": f"zone={fresh_name()}"})
    assert response.json() == []
    assert response.headers["x-total-count"] == "0"
    assert set(links_of(response)) == {"first", "last"}


def test_a_page_after_the_last_is_empty_and_leads_back(service: httpx.Client) -> None:
    zone = fresh_name("zone")
    enrol(service, 3, {"zone": zone})
    response = service.get("/clients", params={"label": f"zone={zone}", "per_page": 2, "page": 1_000_000})
    assert (response.status_code, response.json()) == (200, [])
    links = links_of(response)
    assert "next" not in links
    assert httpx.URL(links["prev"]).params["page"] == "2"
    assert httpx.URL(links["last"]).params["page"] == "2"


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_page", "0"),
        ("per_page", "101"),
        ("per_page", "-1"),
        ("per_page", "all"),
        ("per_page", "1.5"),
        ("page", "0"),
        ("page", "-1"),
        ("page", "1000001"),
        ("page", "9" * 40),
        ("page", ""),
    ],
)
def test_a_page_outside_the_limits_is_refused(
    path: str, name: str, value: str, service: httpx.Client
) -> None:
    problem = assert_problem(service.get(path, params={name: value}), 422, "INVALID_REQUEST")
    assert [param["param"] for param in problem["invalid_params"]] == [name]


@pytest.mark.parametrize("path", LISTS)
def test_every_list_counts_and_cuts(path: str, service: httpx.Client) -> None:
    enrol(service, 2)
    create_task(service)
    create_task(service)
    response = service.get(path, params={"per_page": 1})
    total = int(response.headers["x-total-count"])
    assert len(response.json()) == min(total, 1)
    assert httpx.URL(links_of(response)["last"]).params["page"] == str(max(total, 1))


def test_without_a_size_a_page_has_twenty_items_and_at_most_a_hundred(service: httpx.Client) -> None:
    zone = fresh_name("zone")
    enrol(service, 101, {"zone": zone})
    assert len(service.get("/clients", params={"label": f"zone={zone}"}).json()) == 20
    assert len(service.get("/clients", params={"label": f"zone={zone}", "per_page": 100}).json()) == 100


def test_a_clients_reports_come_in_pages(service: httpx.Client) -> None:
    (client_id,) = enrol(service)
    for number in range(3):
        report(service, client_id, data_samples=number)
    pages = [
        service.get(f"/clients/{client_id}/reports", params={"per_page": 1, "page": page})
        for page in (1, 2, 3)
    ]
    assert [page.json()[0]["data_samples"] for page in pages] == [2, 1, 0]
    assert pages[0].headers["x-total-count"] == "3"
    assert_problem(service.get(f"/clients/{client_id}/reports?per_page=101"), 422, "INVALID_REQUEST")

"""Who gets to the dashboard and what it lets them do, from the wrong side too, over real HTTP."""

import base64
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet

from operator_api.dashboard.login import SESSION_S, local_path
from tests.dashboard_session import COOKIE, csrf_token, log_in, logged_in, session_cookie
from tests.integration.cell import assert_problem, create_task, enrol_one, fresh_name, without_key
from tests.running_service import OPERATOR_KEY, running_service

PAGES = [
    "/",
    "/dashboard/tasks?page=2",
    "/dashboard/tasks/new",
    "/dashboard/clients",
    "/dashboard/clients/c",
    "/dashboard/activity",
    "/dashboard/keys",
]
DATA = ["/dashboard/data/overview", "/dashboard/events"]
ACTIONS = [
    "/dashboard/tasks",
    "/dashboard/tasks/t/rounds",
    "/dashboard/tasks/t/cancel",
    "/dashboard/tasks/t/finish",
    "/dashboard/tasks/t/delete",
    "/dashboard/clients",
    "/dashboard/clients/c/remove",
    "/dashboard/clients/c/keys",
    "/dashboard/clients/c/keys/revoke",
    "/dashboard/keys",
    "/dashboard/keys/k/revoke",
    "/dashboard/logout",
]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
TASK = {"round_deadline_s": "60", "policy": "fedcs", "clock": "simulated"}


@pytest.fixture
def operator(service: httpx.Client) -> Iterator[httpx.Client]:
    with logged_in(service) as client:
        yield client


@pytest.fixture
def stranger(service: httpx.Client) -> Iterator[httpx.Client]:
    with without_key(service) as client:
        yield client


def test_without_a_session_pages_lead_to_the_login_and_data_are_refused(stranger: httpx.Client) -> None:
    for path in PAGES:
        answer = stranger.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == str(httpx.URL("/dashboard/login", params={"next": path}))
    for path in DATA:
        assert_problem(stranger.get(path), 401, "UNAUTHENTICATED")
    for path in ACTIONS:
        answer = stranger.post(path, data={"csrf_token": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")


def test_a_key_is_no_session_and_a_session_no_key(service: httpx.Client, operator: httpx.Client) -> None:
    assert service.get("/").status_code == 303
    assert operator.get("/").status_code == 200
    assert_problem(operator.get("/tasks"), 401, "UNAUTHENTICATED")


def test_headers_of_pages(operator: httpx.Client, stranger: httpx.Client) -> None:
    for answer in (operator.get("/"), stranger.get("/dashboard/login"), log_in(stranger, "wrong")):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "<script>" not in answer.text
        assert " style=" not in answer.text


def test_the_cookie(stranger: httpx.Client) -> None:
    said = log_in(stranger).headers["set-cookie"]
    flags = {part.strip().lower() for part in said.split(";")[1:]}
    assert flags == {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_S}"}
    sealed = stranger.cookies[COOKIE].strip('"')
    for secret in (OPERATOR_KEY.encode(), hashlib.sha256(OPERATOR_KEY.encode()).digest()):
        assert secret not in sealed.encode() + base64.urlsafe_b64decode(sealed)
    over_tls = stranger.post(
        "/dashboard/login", data={"key": OPERATOR_KEY}, headers={"X-Forwarded-Proto": "https"}
    )
    assert "; Secure" in over_tls.headers["set-cookie"]


def test_cookies_that_are_no_session(stranger: httpx.Client, service: httpx.Client) -> None:
    good = session_cookie(service).strip('"')
    made_up = Fernet(Fernet.generate_key()).encrypt(b"operator").decode()
    changed = good[:20] + ("A" if good[20] != "A" else "B") + good[21:]
    for value, status in ((good, 200), (made_up, 303), (changed, 303), (good[:-8], 303), ("operator", 303)):
        answer = stranger.get("/", headers={"Cookie": f"{COOKIE}={value}"})
        assert answer.status_code == status, value


def test_a_session_expires(stranger: httpx.Client) -> None:
    for age_s, status in ((SESSION_S - 300, 200), (SESSION_S + 1, 303)):
        cookie = _session_begun(OPERATOR_KEY, age_s)
        assert stranger.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == status


def test_a_revoked_key_ends_its_sessions_and_their_streams(service: httpx.Client) -> None:
    made = service.post("/keys", json={"scope": "manage"}).json()
    with logged_in(service, made["api_key"]) as client:
        token = csrf_token(client)
        with client.stream("GET", "/dashboard/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("id: ")
            create_task(service)
            assert any(line.startswith('data: {"number"') for line in _until_blank(lines, 2))
            assert service.delete(f"/keys/{made['key_id']}").status_code == 204
            create_task(service, name="not for this key")
            rest = list(lines)  # the stream ends
        assert not any(line.startswith("data:") for line in rest), rest
        assert client.get("/").status_code == 303
        assert_problem(client.get("/dashboard/data/overview"), 401, "UNAUTHENTICATED")
        answer = client.post("/dashboard/tasks", data=TASK | {"csrf_token": token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
        assert log_in(client, made["api_key"]).status_code == 401


def test_a_stream_goes_on_where_it_was(service: httpx.Client, operator: httpx.Client) -> None:
    with operator.stream("GET", "/dashboard/events") as events:
        number = next(events.iter_lines()).removeprefix("id: ")
    missed = create_task(service)["task_id"]
    path = f"/dashboard/events?task_id={missed}"
    for resumed in (
        operator.stream("GET", path, headers={"Last-Event-ID": number}),
        operator.stream("GET", f"{path}&after={number}"),
        operator.stream("GET", f"{path}&after=0", headers={"Last-Event-ID": number}),
    ):
        with resumed as events:
            lines = _until_blank(events.iter_lines(), 1)
        assert any(missed in line for line in lines if line.startswith("data: "))
        assert not any(line.startswith("event:") for line in lines), "a browser would not tell onmessage"
    assert_problem(operator.get(f"{path}&after=-1"), 422, "INVALID_REQUEST")


def test_forms_from_elsewhere_are_refused(service: httpx.Client, operator: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    token = csrf_token(operator)
    with logged_in(service) as other:
        of_another_session = csrf_token(other)
    assert token != of_another_session
    cancel = f"/dashboard/tasks/{task_id}/cancel"
    for wrong in ({}, {"csrf_token": ""}, {"csrf_token": token[:-1]}, {"csrf_token": of_another_session}):
        for path in (cancel, "/dashboard/tasks", "/dashboard/logout"):
            answer = operator.post(path, data=TASK | wrong)
            assert answer.status_code == 403
            assert "did not come from a page of your session" in answer.text
    assert operator.post(cancel, json={"csrf_token": token}).status_code == 403
    assert service.get(f"/tasks/{task_id}").json()["state"] == "initializing"
    answer = operator.post(cancel, headers={"X-CSRF-Token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert service.get(f"/tasks/{task_id}").json()["state"] == "cancelled"


def test_forms_do_what_they_say(service: httpx.Client, operator: httpx.Client) -> None:
    name = fresh_name()
    fields = TASK | {"csrf_token": csrf_token(operator), "name": name, "seed": "9007199254740991"}
    started = operator.post("/dashboard/tasks", data=fields | {"auto_advance": "on"})
    assert started.status_code == 303
    task_id = started.headers["location"].removeprefix("/dashboard/tasks/")
    task = service.get(f"/tasks/{task_id}").json()
    expected = {"name": name, "seed": 2**53 - 1, "auto_advance": True, "clock": "simulated", "dataset": None}
    assert {field: task[field] for field in expected} == expected
    for field, value in (
        ("seed", "9007199254740992"),
        ("round_deadline_s", "nan"),
        ("round_deadline_s", "9" * 5000),
        ("round_deadline_s", ""),
        ("policy", "best"),
        ("clock", "sun"),
        ("model", "a b"),
        ("target_accuracy", "50"),
        ("labels", "bus"),
        ("request_fraction", "101"),
    ):
        answer = operator.post("/dashboard/tasks", data=fields | {field: value})
        assert answer.status_code == 422
        assert re.search(rf'id="task-{field}-error">[^<]', answer.text), (field, value)
    not_ready = operator.post(f"/dashboard/tasks/{task_id}/rounds", data=fields)
    assert not_ready.status_code == 409
    assert "no initial model yet" in not_ready.text
    assert operator.post("/dashboard/tasks/no-such/cancel", data=fields).status_code == 404
    assert operator.post("/dashboard/tasks", content=b"a" * 70_000).status_code == 413
    assert operator.post("/dashboard/tasks", data={f"f{n}": "" for n in range(300)}).status_code == 400
    assert operator.get("/dashboard/tasks?page=0").status_code == 422


def test_a_key_that_may_look_only_changes_nothing(service: httpx.Client) -> None:
    key = service.post("/keys", json={"scope": "read"}).json()["api_key"]
    task_id = create_task(service)["task_id"]
    with logged_in(service, key) as reader:
        token = csrf_token(reader)
        assert reader.get("/dashboard/keys").status_code == 403
        assert reader.get("/dashboard/tasks/new").status_code == 403
        for page in ("/dashboard/tasks", "/dashboard/clients", "/dashboard/activity"):
            assert set(re.findall('action="([^"]*)', reader.get(page).text)) <= {"/dashboard/logout", page}
            assert 'method="post" action="/dashboard/c' not in reader.get(page).text
        paths = [path.replace("/t/", f"/{task_id}/") for path in ACTIONS if path != "/dashboard/logout"]
        for path in paths:
            answer = reader.post(path, data=TASK | {"csrf_token": token})
            assert answer.status_code == 403
            assert "operator:manage" in answer.text
        assert service.get(f"/tasks/{task_id}").json()["state"] == "initializing"
        left = reader.post("/dashboard/logout", data={"csrf_token": token})
        assert (left.status_code, left.headers["location"]) == (303, "/dashboard/login")
        assert COOKIE not in reader.cookies


def test_who_cannot_log_in(service: httpx.Client, stranger: httpx.Client) -> None:
    _, client_key = enrol_one(service)
    for key, status in (("", 401), ("fedcs_", 401), (client_key, 403), (client_key[:-1], 401)):
        answer = log_in(stranger, key)
        assert answer.status_code == status
        assert "set-cookie" not in answer.headers
        assert not key or key not in answer.text
    from_elsewhere = stranger.post(
        "/dashboard/login", data={"key": OPERATOR_KEY}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert from_elsewhere.status_code == 403
    assert COOKIE not in stranger.cookies


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("/?page=2", "/?page=2"),
        ("/dashboard/tasks/t?by=time#end", "/dashboard/tasks/t?by=time#end"),
        ("", "/"),
        ("dashboard/cell", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("\\\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
        ("http:/dashboard", "/"),
        ("//[", "/"),
    ],
)
def test_after_the_login_it_goes_on_to_local_paths_only(
    stranger: httpx.Client, asked: str, given: str
) -> None:
    assert log_in(stranger, next=asked).headers["location"] == given


def test_local_paths_lie_under_the_root() -> None:
    assert local_path("/fedcs/v1/dashboard/cell", "/fedcs/v1") == "/fedcs/v1/dashboard/cell"
    for elsewhere in ("/", "/other", "/fedcs/v1evil", "/fedcs/v1"):
        assert local_path(elsewhere, "/fedcs/v1") == "/fedcs/v1/"


def test_static_files_are_kept_by_browsers_until_they_change(stranger: httpx.Client) -> None:
    page = stranger.get("/dashboard/login").text
    found = re.search(r'href="(/dashboard/static/dashboard.css\?v=[0-9a-f]+)"', page)
    assert found is not None
    versioned = stranger.get(found.group(1))
    assert versioned.headers["content-type"].startswith("text/css")
    assert versioned.headers["cache-control"] == "public, max-age=31536000, immutable"
    for other in ("/dashboard/static/dashboard.css", "/dashboard/static/dashboard.css?v=0"):
        plain = stranger.get(other)
        assert (plain.status_code, plain.headers["cache-control"]) == (200, "no-cache")
        etag = plain.headers["etag"]
        assert stranger.get(other, headers={"If-None-Match": etag}).status_code == 304
        assert stranger.get(other, headers={"If-None-Match": '"another"'}).status_code == 200


def test_of_bokeh_only_what_plots_need_is_served(stranger: httpx.Client) -> None:
    sizes = []
    for name in ("bokeh.min.js", "bokeh-api.min.js"):
        script = stranger.get(f"/dashboard/bokeh/{name}")
        assert script.headers["content-type"].startswith("text/javascript")
        sizes.append(len(script.content))
    assert sum(sizes) < 1_600_000, "two megabytes are allowed, for all that a page loads"
    for path in ("bokeh/bokeh.js", "bokeh/compiler.js", "bokeh/..%2f..%2fviews", "static/..%2fsessions.py"):
        assert_problem(stranger.get(f"/dashboard/{path}"), 404, "NOT_FOUND")


def test_a_person_is_shown_an_error_as_a_page_and_a_program_as_a_problem(stranger: httpx.Client) -> None:
    for path, status in (("/nothing-here", 404), ("/tasks", 401), ("/dashboard/nothing/here", 404)):
        page = stranger.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert "Back to the overview" in page.text
        cause = {404: "NOT_FOUND", 401: "UNAUTHENTICATED"}[status]
        assert_problem(stranger.get(path), status, cause)


def test_pages_are_not_part_of_the_api(service: httpx.Client) -> None:
    paths = service.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/dashboard")]


def test_too_many_wrong_keys(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, without_key(service) as stranger:
        assert {log_in(stranger, f"wrong-{n}").status_code for n in range(20)} == {401}
        refused = log_in(stranger)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "Too many invalid keys" in refused.text
        assert COOKIE not in stranger.cookies
        assert service.get("/tasks").status_code == 200, "the key itself is as good as before"


def test_under_a_root_path_and_across_restarts(tmp_path: Path) -> None:
    root = "/fedcs/v1"
    with running_service(tmp_path, api_root=root) as service, without_key(service) as client:
        assert (
            httpx.get(str(service.base_url).rstrip("/"), timeout=60).status_code == 307
        )  # with a slash at its end
        assert client.get("").headers["location"] == f"{root}/dashboard/login?next=%2Ffedcs%2Fv1%2F"
        answer = log_in(client, next=f"{root}/?page=2")
        assert answer.headers["location"] == f"{root}/?page=2"
        assert f"path={root};" in answer.headers["set-cookie"].lower() + ";"
        page = client.get("").text
        links = re.findall(r' (?:href|src|action)="([^"#]*)', page)
        assert links
        assert [item for item in links if item and not item.startswith((f"{root}/", "data:"))] == []
        for link in links:
            if "/static/" in link:
                assert httpx.get(service.base_url.join(link), timeout=60).status_code == 200
        assert client.get("dashboard/data/overview").status_code == 200
        cookie = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    with (
        running_service(tmp_path) as restarted,
        running_service(tmp_path, operator_key=f"another-{OPERATOR_KEY}") as rekeyed,
    ):
        assert httpx.get(restarted.base_url, headers=cookie, timeout=60).status_code == 200
        assert httpx.get(rekeyed.base_url, headers=cookie, timeout=60).status_code == 303


def _until_blank(lines: Iterator[str], blanks: int) -> list[str]:
    """The lines of the next events."""
    found: list[str] = []
    while found.count("") < blanks:
        found.append(next(lines))
    return found


def _session_begun(operator_key: str, seconds_ago: int) -> str:
    """A cookie that was sealed some time ago, as only the holder of the operator key could."""
    secret = hashlib.scrypt(
        operator_key.encode(), salt=b"fedcs dashboard session", n=2**14, r=8, p=1, dklen=64
    )
    seal = Fernet(base64.urlsafe_b64encode(secret[:32]))
    return seal.encrypt_at_time(b"operator", int(time.time()) - seconds_ago).decode()

"""Access tokens by the client-credentials grant (RFC 6749), over real HTTP."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from fastapi import Request
from pydantic import SecretStr

from operator_api import access_tokens
from operator_api.access_tokens import derive_secret
from services.access import Principal, Scope
from tests.dashboard_session import log_in
from tests.in_process_service import asgi_service
from tests.integration.cell import (
    UNKNOWN_KEY,
    as_client,
    assert_problem,
    enrol_one,
    fresh_name,
    report,
    resources,
    started_round,
    upload,
    without_key,
)
from tests.running_service import OPERATOR_KEY, running_service

GRANT = {"grant_type": "client_credentials"}
OPERATOR = ("operator", OPERATOR_KEY)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SECRET = derive_secret(SecretStr(OPERATOR_KEY), "access token", 64)[:32]
"""What the service signs with: the tests make tokens of their own that are wrong in one way only."""

_addresses = count(1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service of its own: failed attempts are counted."""
    with running_service(tmp_path_factory.mktemp("data")) as client:
        yield client


@pytest.fixture
def stranger(service: httpx.Client) -> Iterator[httpx.Client]:
    """A caller without a key, from an address that no other test uses."""
    with without_key(service) as client:
        client.headers["X-Forwarded-For"] = f"192.0.2.{next(_addresses)}"
        yield client


def ask(caller: httpx.Client, auth: tuple[str, str] | None = None, /, **fields: str) -> httpx.Response:
    basic = httpx.BasicAuth(*auth) if auth else httpx.USE_CLIENT_DEFAULT
    return caller.post("/oauth2/token", data=GRANT | fields, auth=basic)


def token_of(caller: httpx.Client, auth: tuple[str, str], /, **fields: str) -> str:
    answer = ask(caller, auth, **fields)
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["access_token"]
    return token


def make_operator_key(service: httpx.Client, scope: str) -> tuple[str, str]:
    made = service.post("/keys", json={"scope": scope}).json()
    return made["key_id"], made["api_key"]


def credentials_of(key: str) -> tuple[str, str]:
    return key.split("_")[1], key


def assert_refused(response: httpx.Response, status: int, error: str) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in response.headers) == (status == 401)
    told = response.json()
    assert told.keys() == {"error", "error_description"}
    assert told["error"] == error
    description: str = told["error_description"]
    return description


def claims(**changes: Any) -> dict[str, Any]:
    """Those of a good token for the operator key; ``...`` leaves one out."""
    now = int(time.time())
    good = {
        "iss": "fedcs-operator",
        "aud": "fedcs-operator",
        "sub": "operator",
        "scope": "manage",
        "iat": now,
        "exp": now + 600,
        "jti": "some-token",
    }
    return {name: value for name, value in (good | changes).items() if value is not ...}


def signed(secret: bytes = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    return jwt.encode(claims(**changes), secret, algorithm)


def assert_no_good(service: httpx.Client, token: str) -> None:
    with as_client(service, token) as caller:
        assert_problem(caller.get("/clients"), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("way", ["basic", "form", "basic, and the same id in the form"])
def test_the_operator_key_gets_a_token_that_does_what_it_does(
    way: str, service: httpx.Client, stranger: httpx.Client
) -> None:
    given = {"client_id": "operator", "client_secret": OPERATOR_KEY} if way == "form" else {}
    if "same id" in way:
        given = {"client_id": "operator"}
    answer = ask(stranger, None if way == "form" else OPERATOR, **given)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["pragma"] == "no-cache"
    told = answer.json()
    token = told.pop("access_token")
    assert told == {"token_type": "Bearer", "expires_in": 600, "scope": "manage"}
    with as_client(service, token) as caller:
        assert caller.post("/clients", json={}).status_code == 201
        assert caller.get("/keys").status_code == 200


def test_a_token_names_its_key_and_not_more(stranger: httpx.Client) -> None:
    began = int(time.time())
    first, second = (token_of(stranger, OPERATOR, scope="read") for _ in range(2))
    read = jwt.decode(first, options={"verify_signature": False})
    assert jwt.get_unverified_header(first) == {"alg": "HS256", "typ": "JWT"}
    assert read.keys() == {"iss", "aud", "sub", "scope", "iat", "exp", "jti"}
    assert (read["sub"], read["scope"]) == ("operator", "read")
    assert began <= read["iat"] <= time.time()
    assert read["exp"] == read["iat"] + 600
    assert read["jti"] != jwt.decode(second, options={"verify_signature": False})["jti"]


def test_a_token_of_a_read_only_key_looks_and_does_not_act(
    service: httpx.Client, stranger: httpx.Client
) -> None:
    token = token_of(stranger, make_operator_key(service, "read"))
    with as_client(service, token) as reader:
        assert reader.get("/clients").status_code == 200
        assert_problem(reader.post("/clients", json={}), 403, "FORBIDDEN")
        assert_problem(reader.get("/keys"), 403, "FORBIDDEN")


def test_a_client_reports_and_uploads_with_a_token(service: httpx.Client, stranger: httpx.Client) -> None:
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    answer = ask(stranger, credentials_of(key), scope="client")
    assert answer.json()["scope"] == "client"
    with as_client(service, answer.json()["access_token"]) as client:
        report(client, client_id)
        assert client.get("/assignments").json()["assignments"][0]["round_id"] == opened["round_id"]
        assert upload(client, opened["round_id"], client_id).status_code == 201


def test_a_token_of_a_client_is_good_for_that_client_only(
    service: httpx.Client, stranger: httpx.Client
) -> None:
    opened, keys = started_round(service)
    other, other_key = enrol_one(service)
    with as_client(service, token_of(stranger, credentials_of(other_key))) as client:
        for client_id in keys:
            assert_problem(client.post("/reports", json=resources(client_id)), 403, "FORBIDDEN")
            assert_problem(client.get(f"/clients/{client_id}/reports"), 403, "FORBIDDEN")
            assert_problem(upload(client, opened["round_id"], client_id), 403, "FORBIDDEN")
        assert_problem(client.get("/clients"), 403, "FORBIDDEN")
        assert client.get(f"/clients/{other}/reports").status_code == 200


def test_a_token_may_be_narrower_than_its_key(service: httpx.Client, stranger: httpx.Client) -> None:
    answer = ask(stranger, OPERATOR, scope="read")
    assert answer.json()["scope"] == "read"
    with as_client(service, answer.json()["access_token"]) as reader:
        assert reader.get("/clients").status_code == 200
        assert_problem(reader.post("/clients", json={}), 403, "FORBIDDEN")
    for asked in ("manage", "manage read", "read manage"):
        assert ask(stranger, OPERATOR, scope=asked).json()["scope"] == "manage"


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        ("read", "manage"),
        ("read", "read manage"),
        ("read", "client"),
        ("manage", "client"),
        ("manage", "read client"),
        ("client", "read"),
        ("client", "client manage"),
        ("manage", "operator:manage"),
        ("manage", "MANAGE"),
        ("manage", "read  manage"),
        ("manage", " "),
    ],
)
def test_a_scope_beyond_that_of_the_key_is_refused(
    scope: str, asked: str, service: httpx.Client, stranger: httpx.Client
) -> None:
    credentials = (
        credentials_of(enrol_one(service)[1]) if scope == "client" else make_operator_key(service, scope)
    )
    assert_refused(ask(stranger, credentials, scope=asked), 400, "invalid_scope")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"exp": int(time.time()) - 60, "iat": int(time.time()) - 660}, id="expired"),
        pytest.param(
            {"iat": int(time.time()) + 3600, "exp": int(time.time()) + 4000}, id="made in the future"
        ),
        pytest.param({"nbf": int(time.time()) + 3600}, id="not yet good"),
        pytest.param({"aud": "another-service"}, id="for others"),
        pytest.param({"aud": ["fedcs-operator", "another-service"]}, id="also for others"),
        pytest.param({"iss": "another-service"}, id="from others"),
        pytest.param({"sub": "0" * 16}, id="no such key"),
        pytest.param({"sub": "x" * 1000}, id="no key at all"),
        pytest.param({"sub": ["operator"]}, id="a list of keys"),
        pytest.param({"scope": "root"}, id="no such scope"),
        pytest.param({"scope": "manage read"}, id="two scopes"),
        pytest.param({"scope": ["manage"]}, id="a list of scopes"),
        pytest.param({"scope": "client"}, id="not the scope of the key"),
        pytest.param({"exp": "soon"}, id="no time"),
        pytest.param({"exp": None}, id="nothing for a time"),
        *(
            pytest.param({name: ...}, id=f"no {name}")
            for name in ("iss", "aud", "sub", "scope", "iat", "exp", "jti")
        ),
    ],
)
def test_every_claim_is_checked(changes: dict[str, Any], service: httpx.Client) -> None:
    with as_client(service, signed()) as caller:
        assert caller.get("/clients").status_code == 200, "the same without the change is good"
    # PyJWT makes no token whose issuer or subject is not a text; so this one is signed by hand.
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(json.dumps(claims(**changes)).encode()).decode().rstrip("=")
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        f"{header}.{body}".encode(), SECRET
    )
    encoded = base64.urlsafe_b64encode(signature).decode().rstrip("=")
    assert_no_good(service, f"{header}.{body}.{encoded}")


def test_clocks_may_be_some_seconds_apart(service: httpx.Client) -> None:
    now = int(time.time())
    with as_client(service, signed(iat=now + 4, exp=now + 604)) as caller:
        assert caller.get("/clients").status_code == 200


@pytest.mark.parametrize(
    ("secret", "algorithm"),
    [
        (b"another secret of thirty-two bytes", "HS256"),
        (OPERATOR_KEY.encode(), "HS256"),
        (SECRET * 2, "HS512"),
        (SECRET * 2, "HS384"),
        (SECRET, "none"),
    ],
)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_other_secrets_and_algorithms_are_refused(
    secret: bytes, algorithm: str, service: httpx.Client
) -> None:
    if algorithm == "none":
        token = jwt.encode(claims(), "", "none")
        assert token.endswith(".")
    else:
        token = signed(secret, algorithm)
    assert_no_good(service, token)


def test_a_signature_is_not_good_for_another_header_or_other_claims(service: httpx.Client) -> None:
    key_id, _ = make_operator_key(service, "read")
    header, body, signature = signed(sub=key_id, scope="read").split(".")
    _, wider, _ = signed(sub=key_id).split(".")
    _, others, _ = signed().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    shortened = signature[:-4]
    for forged in (
        f"{header}.{wider}.{signature}",
        f"{header}.{others}.{signature}",
        f"{none}.{body}.{signature}",
        f"{none}.{others}.",
        f"{header}.{body}.{shortened}",
        f"{header}.{body}.",
        f"{header}..{signature}",
        f".{body}.{signature}",
        "..",
        f"{header}.{body}.{signature}.",
        f"{header}.{body}.{signature}" + "A" * 4000,
        f"{header}.{'A' * 1500}.{signature}",
    ):
        assert_no_good(service, forged)


def test_not_even_a_signed_token_does_more_than_its_key(service: httpx.Client) -> None:
    key_id, _ = make_operator_key(service, "read")
    with as_client(service, signed(sub=key_id, scope="read")) as reader:
        assert reader.get("/clients").status_code == 200
    assert_no_good(service, signed(sub=key_id, scope="manage"))
    assert_no_good(service, signed(sub=credentials_of(enrol_one(service)[1])[0], scope="read"))


def test_a_revoked_key_ends_its_tokens_at_once(service: httpx.Client, stranger: httpx.Client) -> None:
    credentials = make_operator_key(service, "manage")
    client_id, key = enrol_one(service)
    operators, clients = token_of(stranger, credentials), token_of(stranger, credentials_of(key))
    with as_client(service, operators) as caller, as_client(service, clients) as client:
        assert caller.get("/clients").status_code == 200
        assert client.get("/assignments").status_code == 200
        assert service.delete(f"/keys/{credentials[0]}").status_code == 204
        assert_problem(caller.get("/clients"), 401, "UNAUTHENTICATED")
        assert service.delete(f"/clients/{client_id}").status_code == 204
        assert_problem(client.get("/assignments"), 401, "UNAUTHENTICATED")
    assert_refused(ask(stranger, credentials), 401, "invalid_client")
    assert_refused(ask(stranger, credentials_of(key)), 401, "invalid_client")


def test_a_request_that_goes_on_is_admitted_until_its_token_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of events ask this before they tell anything."""

    async def look() -> None:
        async with asgi_service(tmp_path) as (_, service):
            token = service.authenticator.tokens.issue(Principal("operator", Scope.READ))
            headers = [(b"authorization", f"Bearer {token}".encode())]
            request = Request({"type": "http", "headers": headers})
            assert await service.authenticator.is_still_admitted(request)
            monkeypatch.setattr(access_tokens, "_LEEWAY_S", -access_tokens.TOKEN_S - 1)
            assert not await service.authenticator.is_still_admitted(request)

    asyncio.run(look())


def test_every_process_takes_the_tokens_of_the_others(tmp_path: Path) -> None:
    other_key = "another-operator-key-7c1e90d2b8"
    with running_service(tmp_path) as first, running_service(tmp_path) as another:
        with without_key(first) as stranger:
            operators = token_of(stranger, OPERATOR)
            key_id, key = make_operator_key(first, "read")
            readers = token_of(stranger, (key_id, key))
        with as_client(another, operators) as caller, as_client(another, readers) as reader:
            assert caller.get("/keys").status_code == 200
            assert reader.get("/clients").status_code == 200
            assert first.delete(f"/keys/{key_id}").status_code == 204
            limit = time.monotonic() + 30
            while reader.get("/clients").status_code != 401 and time.monotonic() < limit:
                time.sleep(0.1)
            assert_problem(reader.get("/clients"), 401, "UNAUTHENTICATED")
    with running_service(tmp_path, operator_key=other_key) as restarted:
        assert_no_good(restarted, operators)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "invalid_request"),
        ({"grant_type": ""}, "invalid_request"),
        ({"scope": "read"}, "invalid_request"),
        ({"grant_type": "password", "username": "operator"}, "unsupported_grant_type"),
        ({"grant_type": "authorization_code"}, "unsupported_grant_type"),
        ({"grant_type": "refresh_token"}, "unsupported_grant_type"),
        ({"grant_type": "CLIENT_CREDENTIALS"}, "unsupported_grant_type"),
    ],
)
def test_there_is_one_grant_type(fields: dict[str, str], error: str, stranger: httpx.Client) -> None:
    answer = stranger.post("/oauth2/token", data=fields, auth=OPERATOR, headers=FORM)
    assert_refused(answer, 400, error)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"client_id": "operator"},
        {"client_secret": OPERATOR_KEY},
        {"client_id": "operator", "client_secret": ""},
        {"client_id": "", "client_secret": OPERATOR_KEY},
        {"client_id": "operator", "client_secret": OPERATOR_KEY[:-1]},
        {"client_id": "operator", "client_secret": OPERATOR_KEY + " "},
        {"client_id": "Operator", "client_secret": OPERATOR_KEY},
        {"client_id": "0" * 16, "client_secret": OPERATOR_KEY},
        {"client_id": "0" * 16, "client_secret": UNKNOWN_KEY},
        {"client_id": "operator", "client_secret": "x" * 7000},
        {"client_id": "x" * 7000, "client_secret": OPERATOR_KEY},
        {"client_id": "operator\0", "client_secret": "\U0001f511"},
    ],
)
def test_without_the_right_id_and_key_there_is_no_token(
    fields: dict[str, str], stranger: httpx.Client
) -> None:
    assert_refused(ask(stranger, **fields), 401, "invalid_client")


def test_the_id_has_to_be_that_of_the_key(service: httpx.Client, stranger: httpx.Client) -> None:
    first, another = make_operator_key(service, "read"), make_operator_key(service, "read")
    assert_refused(ask(stranger, (first[0], another[1])), 401, "invalid_client")
    assert_refused(ask(stranger, ("operator", another[1])), 401, "invalid_client")


def test_a_token_gets_no_further_token(stranger: httpx.Client) -> None:
    token = token_of(stranger, OPERATOR)
    assert_refused(ask(stranger, ("operator", token)), 401, "invalid_client")
    bearer = {"Authorization": f"Bearer {token}"}
    assert_refused(stranger.post("/oauth2/token", data=GRANT, headers=bearer), 401, "invalid_client")


def basic(text: bytes) -> str:
    return f"Basic {base64.b64encode(text).decode()}"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic",
        "Basic not-base64!",
        basic(b":"),
        basic(b"operator"),
        basic(b"operator:"),
        basic(f":{OPERATOR_KEY}".encode()),
        basic(b"operator:\xff\xfe"),
        basic(b"operator:" + b"x" * 20_000),
        f"Bearer {OPERATOR_KEY}",
        f"Digest username=operator, response={OPERATOR_KEY}",
        basic(f"operator:{OPERATOR_KEY}".encode()).replace("Basic ", "Basic"),
    ],
)
def test_anything_but_good_basic_credentials_is_refused(authorization: str, stranger: httpx.Client) -> None:
    answer = stranger.post("/oauth2/token", data=GRANT, headers={"Authorization": authorization})
    assert_refused(answer, 401, "invalid_client")
    assert answer.headers["www-authenticate"].startswith("Basic ")


def test_the_key_comes_in_one_way_only(stranger: httpx.Client) -> None:
    twice = ask(stranger, OPERATOR, client_id="operator", client_secret=OPERATOR_KEY)
    assert_refused(twice, 400, "invalid_request")
    assert_refused(ask(stranger, OPERATOR, client_id="0" * 16), 400, "invalid_request")


def test_basic_credentials_may_be_encoded_as_in_a_form(tmp_path: Path) -> None:
    """RFC 6749 wants it so, and curl does not do it; a key may hold characters where that matters."""
    key = "an+operator%41key/3f9c1b7a52d8e604"
    with running_service(tmp_path, operator_key=key) as service, without_key(service) as stranger:
        for sent in (key, "an%2Boperator%2541key%2F3f9c1b7a52d8e604"):
            assert ask(stranger, ("operator", sent)).status_code == 200
        assert_refused(ask(stranger, ("operator", "an operatorAkey/3f9c1b7a52d8e604")), 401, "invalid_client")


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (json.dumps(GRANT), "application/json"),
        (json.dumps(GRANT), "application/x-www-form-urlencoded"),
        ("grant_type=client_credentials", "text/plain"),
        ("grant_type=client_credentials", ""),
        ("grant_type=client_credentials", "multipart/form-data; boundary=x"),
        ("grant_type=client_credentials&grant_type=client_credentials", FORM["Content-Type"]),
        ("grant_type=client_credentials&scope=read&scope=manage", FORM["Content-Type"]),
        ("grant_type=client_credentials&scope=%ff", FORM["Content-Type"]),
        (b"grant_type=client_credentials&scope=\xff", FORM["Content-Type"]),
        ("&".join(f"field{number}=1" for number in range(500)), FORM["Content-Type"]),
    ],
)
def test_it_takes_a_form_and_nothing_else(
    content: str | bytes, media_type: str, stranger: httpx.Client
) -> None:
    headers = {"Content-Type": media_type}
    answer = stranger.post("/oauth2/token", content=content, headers=headers, auth=OPERATOR)
    assert_refused(answer, 400, "invalid_request")


def test_unknown_fields_are_left_alone(stranger: httpx.Client) -> None:
    assert ask(stranger, OPERATOR, resource="https://example.com", future="1").status_code == 200


def test_a_form_is_small(stranger: httpx.Client) -> None:
    answer = ask(stranger, OPERATOR, padding="x" * 10_000)
    assert_problem(answer, 413, "BODY_TOO_LARGE")


def test_who_fails_too_often_has_to_wait_and_others_do_not(
    stranger: httpx.Client, service: httpx.Client
) -> None:
    failures = [ask(stranger, ("operator", f"guess-{number}")) for number in range(20)]
    for failure in failures:
        assert_refused(failure, 401, "invalid_client")
    for credentials in (("operator", "guess"), OPERATOR):
        refused = ask(stranger, credentials)
        assert_problem(refused, 429, "TOO_MANY_REQUESTS")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    with without_key(service) as another:
        assert ask(another, OPERATOR).status_code == 200
    assert stranger.get("/clients", headers=dict(service.headers)).status_code == 200, "keys work on"


def test_who_fails_to_get_tokens_may_log_in(stranger: httpx.Client) -> None:
    for number in range(20):
        ask(stranger, ("operator", f"guess-{number}"))
    assert ask(stranger, OPERATOR).status_code == 429
    assert log_in(stranger).status_code == 303


def test_what_was_no_attempt_is_not_counted(stranger: httpx.Client) -> None:
    for _ in range(25):
        assert_refused(ask(stranger), 401, "invalid_client")
        assert_refused(ask(stranger, OPERATOR, scope="client"), 400, "invalid_scope")
    assert ask(stranger, OPERATOR).status_code == 200


def test_a_key_and_its_tokens_have_one_rate_limit(tmp_path: Path) -> None:
    with (
        running_service(tmp_path, client_rate_limit="4/minute") as service,
        without_key(service) as stranger,
    ):
        _, key = enrol_one(service)
        tokens = [token_of(stranger, credentials_of(key)) for _ in range(2)]
        for bearer in (tokens[0], key):
            with as_client(service, bearer) as client:
                assert client.get("/assignments").status_code == 200
        for bearer in (*tokens, key):
            with as_client(service, bearer) as client:
                assert_problem(client.get("/assignments"), 429, "TOO_MANY_REQUESTS")
        assert_problem(ask(stranger, credentials_of(key)), 429, "TOO_MANY_REQUESTS")


def test_a_repeated_request_gets_the_first_answer_though_the_token_is_another(
    service: httpx.Client, stranger: httpx.Client
) -> None:
    once = {"Idempotency-Key": fresh_name()}
    answers = []
    for _ in range(2):
        with as_client(service, token_of(stranger, OPERATOR)) as caller:
            answers.append(caller.post("/keys", json={"scope": "read"}, headers=once))
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    with_the_key = service.post("/keys", json={"scope": "read"}, headers=once)
    assert_problem(with_the_key, 422, "IDEMPOTENCY_KEY_REUSED")


def test_no_token_logs_in_to_the_dashboard(service: httpx.Client, stranger: httpx.Client) -> None:
    """A session would outlast it by hours."""
    token = token_of(stranger, OPERATOR)
    assert stranger.post("/dashboard/login", data={"key": token}).status_code == 401
    assert stranger.post("/dashboard/login", data={"key": OPERATOR_KEY}).status_code == 303
    assert service.get("/clients").status_code == 200


def test_the_document_tells_how_to_get_a_token(tmp_path: Path) -> None:
    with running_service(tmp_path, api_root="/fedcs/v1") as service, without_key(service) as stranger:
        document = stranger.get("/openapi.json").json()
        flow = document["components"]["securitySchemes"]["OAuth2"]["flows"]["clientCredentials"]
        assert flow["scopes"].keys() == {"read", "manage", "client"}
        answer = stranger.post(service.base_url.join(flow["tokenUrl"]), data=GRANT, auth=OPERATOR)
        assert answer.status_code == 200, answer.text
        security = document["paths"]["/fedcs/v1/reports"]["post"]["security"]
        assert {"OAuth2": ["client"]} in security
        assert {"OAuth2": ["manage"]} in security
        assert {"ApiKey": []} in security

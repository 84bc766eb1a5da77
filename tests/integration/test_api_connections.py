"""The connections of the asynchronous client: forms of answers, early answers, TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedcs_client import endpoints
from fedcs_client.api import Api, ApiError, AsyncApi
from fedcs_client.endpoints import Body
from tests.integration.cell import enrol_one
from tests.integration.scripted_server import answer, scripted_server
from tests.running_service import OPERATOR_KEY

READY = answer("200 OK", b'{"status": "ready", "checks": {}}')


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + READY, id="after a hint"),
        pytest.param(READY.replace(b"Content-Length: 33\r\n", b""), id="as long as the connection"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'10\r\n{"status": "read\r\n11\r\ny", "checks": {}}\r\n0\r\n\r\n',
            id="in chunks",
        ),
    ],
)
def test_an_answer_may_come_in_other_forms(form: bytes) -> None:
    async def send(url: str) -> endpoints.Readiness:
        async with AsyncApi(url, OPERATOR_KEY, retry_timeout_s=0.0) as api:
            return await api.send(endpoints.readiness())

    with scripted_server(form) as server:
        assert asyncio.run(send(server.url)).status == "ready"


def test_an_upload_that_is_refused_is_not_sent_to_its_end(service: httpx.Client) -> None:
    sent = 0

    async def slowly(content: bytes) -> AsyncIterator[bytes]:
        nonlocal sent
        for place in range(len(content)):
            yield content[place : place + 1]
            sent += 1
            await asyncio.sleep(0.01)

    async def send() -> None:
        _, key = enrol_one(service)
        async with AsyncApi(str(service.base_url), key) as api:
            await api.send(endpoints.upload_update("round-none", "c", Body(b"x" * 3000, slowly), 3))

    with pytest.raises(ApiError):
        asyncio.run(send())
    assert sent < 3000


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)

    async def send(url: str) -> endpoints.Readiness:
        async with AsyncApi(url, OPERATOR_KEY, retry_timeout_s=0.0) as async_api:
            return await async_api.send(endpoints.readiness())

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with scripted_server(READY, READY, tls=tls) as server:
        with Api(server.url, OPERATOR_KEY, retry_timeout_s=0.0) as api:
            assert api.send(endpoints.readiness()).status == "ready"
        assert asyncio.run(send(server.url)).status == "ready"


def make_certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + built.public_bytes(Encoding.PEM))
    return file

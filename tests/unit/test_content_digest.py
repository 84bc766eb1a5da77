"""The ``Content-Digest`` header: a dictionary of byte sequences (RFC 9530, RFC 9651)."""

import base64
import hashlib

import pytest
from pydantic_core import PydanticCustomError

from operator_api.model_files import sha256_of

DIGEST = hashlib.sha256(b"a model")
BASE64 = base64.b64encode(DIGEST.digest()).decode()
MEMBER = f"sha-256=:{BASE64}:"
OTHER = f"sha-256=:{'A' * 43}=:"


@pytest.mark.parametrize(
    "header",
    [
        MEMBER,
        f"  {MEMBER}\t",
        f"md5=:AAAA:,{MEMBER}",
        f"md5=:: , \t {MEMBER} , sha-512=:AA==:",
        f"a-sha-256=:A:, {MEMBER}",
        f"{MEMBER}, x.y_z*=:A:",
        f"{OTHER}, {MEMBER}",
    ],
)
def test_the_digest_is_that_of_the_last_member_named_sha_256(header: str) -> None:
    assert sha256_of(header) == DIGEST.hexdigest()


@pytest.mark.parametrize(
    "header",
    [
        "",
        ",",
        f"{MEMBER},",
        f",{MEMBER}",
        f"{MEMBER}, ",
        f"{MEMBER} {MEMBER}",
        f"a-{MEMBER}",
        f"SHA-256=:{BASE64}:",
        f"sha-256={BASE64}",
        f"sha-256=: {BASE64}:",
        f"sha-256=:{BASE64}",
        f"sha-256=:{BASE64}=:",
        f"sha-256=:{BASE64[:-1]}:",
        f"sha-256=:{BASE64[:40]}:",
        f"sha-256=:={BASE64[1:]}:",
        f"sha-256=:{'A' * 45}=::",
        f"{MEMBER}, sha-256=:AAAA:",
        f"{MEMBER}, 1=:A:",
        f"{MEMBER}, md5",
        f'{MEMBER}, md5="A"',
        "sha-512=:AA==:",
    ],
)
def test_what_has_no_sha_256_digest_is_refused(header: str) -> None:
    with pytest.raises(PydanticCustomError, match=r"^Content-Digest must be sha-256=:BASE64:$"):
        sha256_of(header)

"""Secrets that every process of the service has, made from ``FEDCS_OPERATOR_KEY``, which they share."""

import hashlib

from pydantic import SecretStr


def derive_secret(operator_key: SecretStr, purpose: str, length: int) -> bytes:
    """A secret for one purpose; those of two purposes tell nothing of each other.

    Slow on purpose, so that nobody can find the operator key by trying keys on something that was sealed or
    signed with the secret. So slow that it should wait for the first use: many processes never see one.
    """
    key = operator_key.get_secret_value().encode()
    return hashlib.scrypt(key, salt=f"fedcs {purpose}".encode(), n=2**14, r=8, p=1, dklen=length)

"""The tokens of a fake Google Cloud: a service account's key is a real one, and what is signed with it is verified."""

from __future__ import annotations

import json
import secrets
import threading
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from google.auth import crypt, jwt

from tests.support.clouds.gcs.buckets import Refusal

ACCOUNT = "trainer@project.example"
_LIFETIME_SECONDS = 3600


class Tokens:
    """Issues access tokens for assertions that the account's key has signed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._verifier = crypt.RSAVerifier.from_string(public)
        self._lock = threading.Lock()
        self._valid: set[str] = set()

    def key(self) -> dict[str, str]:
        """The content of a key file."""
        private = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "type": "service_account",
            "project_id": "project",
            "client_email": ACCOUNT,
            "private_key_id": "first",
            "private_key": private.decode(),
            "token_uri": self._url,
        }

    def issue(self, form: bytes) -> bytes:
        """The answer with a new token, or a refusal as Google's."""
        (assertion,) = parse_qs(form.decode())["assertion"]
        _, _, signed, signature = jwt._unverified_decode(assertion)
        if not self._verifier.verify(signed, signature):
            raise Refusal(400, "invalid_grant")
        return json.dumps({"access_token": self._new(), "expires_in": _LIFETIME_SECONDS}).encode()

    def is_valid(self, token: str) -> bool:
        with self._lock:
            return token in self._valid

    def issued(self) -> list[str]:
        with self._lock:
            return sorted(self._valid)

    def forget(self) -> None:
        """Let every token so far be refused, as after it has expired or was revoked."""
        with self._lock:
            self._valid.clear()

    def _new(self) -> str:
        token = f"ya29.{secrets.token_urlsafe(24)}"
        with self._lock:
            self._valid.add(token)
        return token

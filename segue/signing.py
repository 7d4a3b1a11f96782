"""Signs with a key that a reference names: `env:NAME` or `file:/path`. segue never stores the key.

If the key is a secret text, segue signs with HMAC-SHA256. A key in PEM form signs with ed25519 (extra `signing`). A
public key can only verify. Signed bytes begin with their purpose, so that a signature is valid for only one purpose.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from segue.errors import BadSignatureError, MissingExtraError, SigningKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\s?#@]*")
"""The pattern of a reference to a key. A key in place of a reference does not match this pattern."""

_LEAST_SECRET_BYTES = 32
_PEM = b"-----BEGIN "
_ID_DIGITS = 8
_MAKE_KEY = "make one with `openssl rand -hex 32`, or `openssl genpkey -algorithm ed25519`."


class Signer(Protocol):
    """A key that can sign and verify. Several threads may use it at the same time."""

    @property
    def key_id(self) -> str:
        """A text that identifies this key in messages, without revealing it."""
        ...

    def sign(self, data: bytes) -> str:
        """Return the signature of these bytes. Equal bytes always have equal signatures.

        Raises:
            SigningKeyError: the key is a public key.
        """
        ...

    def verify(self, data: bytes, signature: str) -> None:
        """Check that `signature` is the signature of these bytes by this key.

        Raises:
            BadSignatureError: the signature is wrong, or another key made it.
        """
        ...


def open_signer(reference: str) -> Signer:
    """Return the key that a reference names: `env:NAME` for a variable of this process, or `file:/path`.

    Raises:
        SigningKeyError: the key does not exist, cannot be read, or is not a key.
        MissingExtraError: the key is an ed25519 key, and the extra `signing` is not installed.
    """
    if not REFERENCE.fullmatch(reference):
        # The reference is not shown: it may be the key itself.
        fix = "write env:NAME or file:/path; the key itself does not belong there."
        raise SigningKeyError(reference="(not shown)", why="it is not a reference to a key", fix=fix)
    content = _content(reference).strip()
    if content.startswith(_PEM):
        return _ed25519(content, reference)
    if len(content) < _LEAST_SECRET_BYTES:
        why = f"it has {len(content)} bytes, and a secret needs at least {_LEAST_SECRET_BYTES}"
        raise SigningKeyError(reference=reference, why=why, fix=_MAKE_KEY)
    return HmacSigner(content)


class HmacSigner:
    """Signs with HMAC-SHA256. Anyone who can verify a signature can also sign."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.key_id = self._tag(b"segue key id")[:_ID_DIGITS]

    def __repr__(self) -> str:
        return f"HmacSigner({self.key_id})"

    def sign(self, data: bytes) -> str:
        return f"hmac-sha256:{self.key_id}:{self._tag(data)}"

    def verify(self, data: bytes, signature: str) -> None:
        found = _parsed(signature, scheme="hmac-sha256", key_id=self.key_id)
        if not hmac.compare_digest(found.encode(), self._tag(data).encode()):
            raise BadSignatureError(why="the signature does not match these bytes", key_id=self.key_id)

    def _tag(self, data: bytes) -> str:
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()


class Ed25519Signer:
    """Signs with ed25519. The private key signs, and the public key verifies."""

    def __init__(self, public: Ed25519PublicKey, private: Ed25519PrivateKey | None, *, reference: str) -> None:
        self._public, self._private, self._reference = public, private, reference
        self.key_id = hashlib.sha256(public.public_bytes_raw()).hexdigest()[:_ID_DIGITS]

    def __repr__(self) -> str:
        return f"Ed25519Signer({self.key_id})"

    def sign(self, data: bytes) -> str:
        if self._private is None:
            fix = "give the private key to the processes that train or change the run."
            raise SigningKeyError(reference=self._reference, why="a public key only verifies", fix=fix)
        return f"ed25519:{self.key_id}:{self._private.sign(data).hex()}"

    def verify(self, data: bytes, signature: str) -> None:
        from cryptography.exceptions import InvalidSignature

        found = _parsed(signature, scheme="ed25519", key_id=self.key_id)
        try:
            self._public.verify(bytes.fromhex(found), data)
        except (InvalidSignature, ValueError):
            raise BadSignatureError(why="the signature does not match these bytes", key_id=self.key_id) from None


def _content(reference: str) -> bytes:
    kind, _, name = reference.partition(":")
    if kind == "env":
        text = os.environ.get(name)
        if not text:
            fix = f"set {name} in the environment of the run's parents, segments and commands."
            raise SigningKeyError(reference=reference, why="there is no such variable, or it is empty", fix=fix)
        return text.encode()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        fix = "mount the key on the machines on which parents, segments and commands of the run start."
        why = f"the file cannot be read ({error.strerror})"
        raise SigningKeyError(reference=reference, why=why, fix=fix) from None


def _parsed(signature: str, *, scheme: str, key_id: str) -> str:
    """Check that this key made a signature. Return the digits of the signature."""
    found_scheme, _, rest = signature.partition(":")
    found_id, _, digits = rest.partition(":")
    if (found_scheme, found_id) != (scheme, key_id):
        why = f"the signature is by another key, {found_scheme[:16]} {found_id[:_ID_DIGITS]}"
        raise BadSignatureError(why=why, key_id=key_id)
    return digits


def _ed25519(content: bytes, reference: str) -> Signer:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    except ImportError:
        raise MissingExtraError(extra="signing", needed_for="an ed25519 key") from None
    try:
        if b"PUBLIC KEY" in content.partition(b"\n")[0]:
            public = serialization.load_pem_public_key(content)
            if isinstance(public, Ed25519PublicKey):
                return Ed25519Signer(public, None, reference=reference)
        else:
            private = serialization.load_pem_private_key(content, password=None)
            if isinstance(private, Ed25519PrivateKey):
                return Ed25519Signer(private.public_key(), private, reference=reference)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass  # The message of the exception is dropped: it may quote the key.
    why = "it is not an ed25519 key in PEM form without a passphrase"
    raise SigningKeyError(reference=reference, why=why, fix=_MAKE_KEY)

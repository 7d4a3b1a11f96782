"""Keys by reference: what they sign they verify, and nothing else; no message shows a key."""

from __future__ import annotations

import subprocess

import pytest

from segue.errors import BadSignatureError, SigningKeyError
from segue.signing import open_signer
from segue.spec import StoreSpec
from tests.security.conftest import SECRET, new_key


def test_what_a_key_signs_it_verifies_and_the_same_bytes_have_the_same_signature(key):
    signer, again = open_signer(key), open_signer(key)
    signature = signer.sign(b"some bytes")
    assert again.sign(b"some bytes") == signature
    assert again.verify(b"some bytes", signature) is None
    assert signer.key_id == again.key_id


@pytest.mark.parametrize(
    "change",
    [lambda s: s[:-1] + ("0" if s[-1] != "0" else "1"), lambda s: "", lambda s: s[:-2], lambda s: f"{s}00", str.upper],
)
def test_a_changed_signature_is_refused(key, change):
    signer = open_signer(key)
    with pytest.raises(BadSignatureError):
        signer.verify(b"some bytes", change(signer.sign(b"some bytes")))


def test_the_signature_of_other_bytes_is_refused(key):
    signer = open_signer(key)
    with pytest.raises(BadSignatureError, match="does not match these bytes"):
        signer.verify(b"other bytes", signer.sign(b"some bytes"))


@pytest.mark.parametrize("kind", ["hmac", "ed25519"])
def test_the_signature_of_another_key_is_refused_as_such(key, kind, tmp_path):
    other = open_signer(new_key(tmp_path / "other", kind=kind, secret="6f" * 32))
    with pytest.raises(BadSignatureError, match=f"by another key, .*{other.key_id}"):
        open_signer(key).verify(b"some bytes", other.sign(b"some bytes"))


def test_a_public_key_verifies_and_does_not_sign(tmp_path):
    private = new_key(tmp_path / "private", kind="ed25519")
    made = subprocess.run(
        ["openssl", "pkey", "-in", tmp_path / "private", "-pubout"], check=True, capture_output=True, text=True
    )
    (tmp_path / "public").write_text(made.stdout)
    public = open_signer(f"file:{tmp_path / 'public'}")
    public.verify(b"some bytes", open_signer(private).sign(b"some bytes"))
    with pytest.raises(SigningKeyError, match="a public key only verifies"):
        public.sign(b"some bytes")


def test_a_key_comes_from_a_variable(monkeypatch):
    monkeypatch.setenv("THE_KEY", SECRET)
    signer = open_signer("env:THE_KEY")
    signer.verify(b"x", signer.sign(b"x"))
    assert SECRET not in repr(signer) + signer.sign(b"x")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("short", "at least 32"),
        ("", "at least 32"),
        ("-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----", "not an ed25519 key"),
        ("-----BEGIN PUBLIC KEY-----\n\n-----END PUBLIC KEY-----", "not an ed25519 key"),
    ],
)
def test_a_file_that_is_no_key_is_refused_without_its_content(tmp_path, content, why):
    (tmp_path / "key").write_text(content)
    with pytest.raises(SigningKeyError, match=why) as caught:
        open_signer(f"file:{tmp_path / 'key'}")
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("algorithm", [["RSA"], ["ed25519", "-aes256", "-pass", "pass:long-enough"]])
def test_other_keys_and_keys_with_a_passphrase_are_refused(tmp_path, algorithm):
    command = ["openssl", "genpkey", "-algorithm", *algorithm, "-out", tmp_path / "key"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SigningKeyError, match="without a passphrase"):
        open_signer(f"file:{tmp_path / 'key'}")


@pytest.mark.parametrize("reference", ["env:NO_SUCH_VARIABLE_HERE", "file:/no/such/file"])
def test_a_key_that_is_not_there_is_named(reference):
    with pytest.raises(SigningKeyError) as caught:
        open_signer(reference)
    assert caught.value.reference == reference
    assert "Fix: " in str(caught.value)


def test_a_key_in_place_of_a_reference_is_refused_and_not_shown():
    with pytest.raises(SigningKeyError) as caught:
        open_signer(SECRET)
    assert SECRET not in str(caught.value)
    from segue.errors import SpecError

    with pytest.raises(SpecError) as spec_error:
        StoreSpec.parse({"url": "store", "signing_key": SECRET}, source="a test")
    assert "signing_key: must be env:NAME or file:/path" in str(spec_error.value)
    assert SECRET not in str(spec_error.value)

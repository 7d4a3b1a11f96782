"""Stores on servers with certificates of a private CA: what is trusted, and what the messages say of the rest."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import certifi
import pytest
import trustme

from segue.errors import StoreUnreachableError
from segue.spec import StoreSpec
from segue.stores import Store, open_store
from segue.stores.endpoint import certificate_fault

pytestmark = pytest.mark.matrix
MOTO = "import sys; from moto.server import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a private CA (`ca.pem`), and a certificate of it for loopback (`server.pem`, with its key)."""
    folder, authority = tmp_path_factory.mktemp("ca"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    elsewhere = authority.issue_cert("s3.example.com")
    elsewhere.private_key_and_cert_chain_pem.write_to_path(folder / "elsewhere.pem")
    no_name = authority.issue_cert(common_name="127.0.0.1")
    no_name.private_key_and_cert_chain_pem.write_to_path(folder / "no-name.pem")
    old = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    old.private_key_and_cert_chain_pem.write_to_path(folder / "expired.pem")
    return folder


@pytest.fixture(scope="module")
def bucket(ca: Path, aws_keys: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSpec]:
    """A bucket on a server with the certificate of the private CA."""
    with moto_with(ca / "server.pem", trusted=ca / "ca.pem", folder=tmp_path_factory.mktemp("moto")) as spec:
        yield spec


@contextmanager
def moto_with(certificate: Path, *, trusted: Path, folder: Path) -> Iterator[StoreSpec]:
    """A bucket on moto's server, which shows this certificate."""
    log = folder / "output"
    command = [sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", "0", "-s"]
    command += ["-c", str(certificate), "-k", str(certificate)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as server:
        try:
            give_up_at = time.monotonic() + 60
            while (found := re.search(r"https://127\.0\.0\.1:\d+", log.read_text())) is None:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < give_up_at, log.read_text()
                time.sleep(0.05)
            client = boto3.client("s3", endpoint_url=found[0], verify=str(trusted))
            client.create_bucket(Bucket="models")
            client.close()
            yield StoreSpec(url="s3://models/a", endpoint_url=found[0])
        finally:
            server.terminate()


class _Silent(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def tls_server(request: pytest.FixtureRequest, ca: Path) -> Iterator[str]:
    """The address of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca / request.param)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(store: Store) -> StoreUnreachableError:
    with pytest.raises(StoreUnreachableError) as raised:
        store.check()
    return raised.value


def round_trip(spec: StoreSpec) -> None:
    store = open_store(spec)
    store.check()
    large = bytes(range(256)) * 100_000
    store.put("large", large)  # In parts, by a client of its own.
    assert store.get_range("large", 20_000_000, 5_000_000) == large[20_000_000:25_000_000]
    assert [item.key for item in store.afresh().list_objects("")] == ["large"]
    store.drop_unfinished("large")
    store.delete(["large"])


def test_the_ca_of_boto3_is_trusted_by_every_client(bucket, ca, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca / "ca.pem"))
    round_trip(bucket)


def test_the_ca_of_a_profile_is_trusted(bucket, ca, tmp_path, monkeypatch):
    (tmp_path / "config").write_text(f"[profile minio]\nca_bundle = {ca / 'ca.pem'}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "minio")
    round_trip(bucket)


def test_an_unknown_ca_is_named_and_the_fix_works(bucket, ca, monkeypatch):
    found = refusal(open_store(bucket))
    assert "is not trusted (unable to get local issuer certificate)" in str(found)
    assert "set AWS_CA_BUNDLE to a PEM file with the public CAs and this CA, on every machine" in found.fix
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca / "ca.pem"))
    open_store(bucket).check()


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("no certificate", "NO_CERTIFICATE_OR_CRL")])
def test_a_file_that_is_no_ca_is_named(bucket, tmp_path, monkeypatch, content, why):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    with pytest.raises(StoreUnreachableError, match=why) as raised:
        open_store(bucket)
    assert f"the file '{file}' with trusted CAs cannot be used" in str(raised.value)
    assert "Fix: set AWS_CA_BUNDLE" in str(raised.value)
    open_store(StoreSpec(url=bucket.url, endpoint_url="http://127.0.0.1:9"))  # Without TLS, the file is not read.


def test_a_ca_in_a_form_of_openssl_alone_is_named(bucket, ca, tmp_path, monkeypatch):
    file = tmp_path / "trusted.pem"
    convert = ["openssl", "x509", "-in", ca / "ca.pem", "-trustout", "-out", file]
    subprocess.run(convert, check=True, capture_output=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(file))
    with pytest.raises(StoreUnreachableError, match="no line -----BEGIN CERTIFICATE-----"):
        open_store(bucket)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_variable_is_named(bucket, monkeypatch, name):
    monkeypatch.setenv("AWS_CA_BUNDLE", name)
    with pytest.raises(StoreUnreachableError, match=f"the file '{name}' with trusted CAs cannot be used"):
        open_store(bucket)


def test_public_cas_and_a_private_one_in_one_file_are_trusted(bucket, ca, tmp_path, monkeypatch):
    """As docs/object-stores.md makes the file."""
    both = tmp_path / "cas.pem"
    both.write_bytes(Path(certifi.where()).read_bytes() + (ca / "ca.pem").read_bytes())
    monkeypatch.setenv("AWS_CA_BUNDLE", str(both))
    round_trip(bucket)


@pytest.mark.parametrize(
    ("tls_server", "why"),
    [
        ("elsewhere.pem", "hostname '127.0.0.1' doesn't match 's3.example.com'"),
        ("expired.pem", "certificate has expired"),
        ("no-name.pem", "no appropriate subjectAltName fields were found"),
    ],
    indirect=["tls_server"],
)
def test_a_certificate_for_another_host_or_time_is_named(aws_keys, ca, tls_server, monkeypatch, why):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca / "ca.pem"))
    found = refusal(open_store(StoreSpec(url="s3://models/a", endpoint_url=tls_server)))
    assert why in str(found)
    assert "check the host name of the endpoint, and until when the certificate is valid" in found.fix


@pytest.mark.parametrize("tls_server", ["server.pem"], indirect=True)
def test_google_cloud_behind_an_unknown_ca_is_named(gcs, tls_server):
    found = refusal(open_store(StoreSpec(url="gs://models/a", endpoint_url=tls_server)))
    assert "is not trusted (unknown issuer)" in str(found)
    assert "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to a PEM file" in found.fix


@pytest.mark.parametrize("tls_server", ["expired.pem"], indirect=True)
def test_a_certificate_that_has_expired_is_named_without_boto3(gcs, ca, tls_server, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(ca / "ca.pem"))
    found = refusal(open_store(StoreSpec(url="gs://models/a", endpoint_url=tls_server)))
    assert "is not trusted (expired)" in str(found)


def test_a_ca_as_the_certificate_of_a_server_is_named(aws_keys, tmp_path, monkeypatch):
    """As `openssl req -x509` makes them: boto3 trusts such a certificate, and obstore does not."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*request.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with moto_with(both, trusted=certificate, folder=tmp_path) as spec:
        found = refusal(open_store(spec))
    assert "is not trusted (ca used as end entity)" in str(found)
    assert found.fix == "give the server a certificate with basicConstraints=CA:FALSE; it may be self-signed."


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("error: Custom {\n error: InvalidCertificate(\n   UnknownIssuer,\n ) }", "unknown issuer"),
        ("InvalidCertificate(\n  Other(\n  OtherError(\n  CaUsedAsEndEntity,\n", "ca used as end entity"),
        (
            "CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1)",
            "self-signed certificate",
        ),
        (
            "certificate verify failed: IP address mismatch, certificate is not valid for 'a.b'",
            "IP address mismatch, certificate is not valid for 'a.b'",
        ),
        ("HTTP error: error sending request", None),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", None),
    ],
)
def test_the_reason_is_taken_from_both_libraries(message, fault):
    assert certificate_fault(message) == fault

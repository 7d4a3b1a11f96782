"""Handles the address of a bucket: the parts of the URL, permitted endpoints, refused certificates, and the settings of
obstore."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from segue.errors import StoreUnreachableError

if TYPE_CHECKING:
    from obstore.store import ClientConfig

CONNECT_TIMEOUT = timedelta(seconds=5)
CLIENT_TIMEOUT = timedelta(seconds=60)
_REFUSED_CERTIFICATE = re.compile(
    r"InvalidCertificate\((?:\s*Other\w*\()*\s*(?P<rustls>\w+)"
    r"|certificate verify failed: (?P<openssl>[^(\n]+[^(\s])"
    r"|(?P<urllib3>hostname '\S+' doesn't match .{,200}|no appropriate subjectAltName fields were found)"
)
"""The reason in a message of rustls, which obstore uses, and of OpenSSL and urllib3, which boto3 uses."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class BucketPlace(NamedTuple):
    """The bucket and the prefix in the URL of a store."""

    bucket: str
    prefix: str


def place_of(url: str, *, form: str) -> BucketPlace:
    """Return the bucket and the prefix of a URL of the given form, e.g. s3://bucket/prefix.

    Raises:
        StoreUnreachableError: the URL has another form.
    """
    parts = urlsplit(url)
    fix = f"write it as {form}."
    if not parts.netloc:
        holder = urlsplit(form).netloc
        raise StoreUnreachableError(url=url, why=f"the URL has no {holder}.", fix=fix)
    if parts.query or parts.fragment:
        raise StoreUnreachableError(url=url, why="the URL has a '?' or '#' after the prefix.", fix=fix)
    return BucketPlace(parts.netloc, parts.path)


def is_payload_exposed(endpoint_url: str | None) -> bool:
    """Whether an attacker on the network could read a request and change its bytes.

    For loopback addresses, the result is False.
    """
    if endpoint_url is None:
        return False
    parts = urlsplit(endpoint_url)
    return parts.scheme == "http" and parts.hostname not in _LOOPBACK


def checked_endpoint(url: str, endpoint_url: str | None) -> str | None:
    """Return the endpoint, if it is safe. The cloud's request signatures do not protect the bytes.

    Raises:
        StoreUnreachableError: the endpoint is not a URL, or uses `http://` and is not on this machine.
    """
    if endpoint_url is not None and not endpoint_url.startswith(("http://", "https://")):
        fix = "write it with https://."
        raise StoreUnreachableError(url=url, why=f"the endpoint {endpoint_url!r} is not a URL.", fix=fix)
    if is_payload_exposed(endpoint_url):
        raise StoreUnreachableError(
            url=url,
            why=f"the connection to {endpoint_url} is not encrypted: others could read the credentials and change "
            "the bytes.",
            fix="give the endpoint with https://; http:// is permitted only for servers on 127.0.0.1.",
        )
    return endpoint_url


CA_AS_SERVER = "ca used as end entity"
"""The fault of a server's certificate that is at the same time a certificate of a CA."""


def certificate_fault(message: str) -> str | None:
    """Return the reason why the certificate of a server was refused. Return None if this error has another cause."""
    found = _REFUSED_CERTIFICATE.search(message)
    if found is None:
        return None
    if found["rustls"]:
        return re.sub(r"\B(?=[A-Z])", " ", found["rustls"].removesuffix("Context")).lower()
    return found["openssl"] or found["urllib3"]


def client_options(
    endpoint_url: str | None, timeout: timedelta = CLIENT_TIMEOUT, *, root_certificates: bytes | None = None
) -> ClientConfig:
    """Return the settings of obstore for an endpoint. `timeout` is the time limit of one request, including its body.
    `root_certificates` are trusted in addition to the CAs of the system."""
    options: ClientConfig = {"timeout": timeout, "connect_timeout": CONNECT_TIMEOUT}
    if root_certificates is not None:
        options["root_certificate"] = root_certificates
    if endpoint_url is not None:
        options["allow_http"] = urlsplit(endpoint_url).scheme == "http"
    return options

"""A store in a bucket of Google Cloud Storage.

The library obstore transfers the bytes, and google-auth finds the credentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from segue.errors import MissingExtraError, StoreUnreachableError
from segue.stores.base import StoreReadError

try:
    import google.auth
    import google.auth.exceptions
    import requests
    from google.auth.transport.requests import AuthorizedSession
    from obstore.auth.google import GoogleCredentialProvider
    from obstore.store import GCSStore as ObstoreGCS

    from segue.stores.endpoint import CLIENT_TIMEOUT, checked_endpoint, client_options, place_of
    from segue.stores.google_random import use_own_random_stream
    from segue.stores.objects import ObjectStore
except ImportError:
    raise MissingExtraError(extra="gcs", needed_for="a store on gs://") from None

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_GOOGLE = "https://storage.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_TIMEOUT_SECONDS = 20.0
_GONE = 404


class GcsStore(ObjectStore):
    """Objects below `bucket/prefix`, through the XML API.

    The condition of `put_if_absent` is `x-goog-if-generation-match: 0`.
    """

    scheme, cloud, variables = "gs", "Google Cloud", "GOOGLE_..."
    ca_variable = "SSL_CERT_FILE and REQUESTS_CA_BUNDLE"  # of obstore and of google-auth

    def __init__(self, *, bucket: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        use_own_random_stream()
        url = f"gs://{bucket}"
        self._base_url = (checked_endpoint(url, endpoint_url) or _GOOGLE).rstrip("/")
        try:
            self._credentials, _ = google.auth.default(scopes=_SCOPES)
        except google.auth.exceptions.DefaultCredentialsError:
            raise StoreUnreachableError(
                url=url,
                why="google-auth finds no credentials that it can use.",
                fix="name a key file in GOOGLE_APPLICATION_CREDENTIALS, log in with `gcloud auth application-default "
                "login`, or give the machine a service account.",
            ) from None
        except google.auth.exceptions.GoogleAuthError as error:
            # With workload identity federation, google.auth.default requests a token to find the project.
            why = f"Google gives no access token for the credentials ({type(error).__name__})"
            raise StoreReadError(url=url, key="", why=why) from None
        super().__init__(bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)

    def _opened(self, retry: RetryConfig, *, timeout: timedelta = CLIENT_TIMEOUT) -> ObstoreGCS:
        return ObstoreGCS(
            self.bucket,
            prefix=self.prefix or None,
            config={"base_url": self._base_url},
            client_options=client_options(self._endpoint_url, timeout),
            retry_config=retry,
            credential_provider=GoogleCredentialProvider(self._credentials),
        )

    def check(self) -> None:
        self._require_token()
        super().check()

    def reach(self) -> None:
        self._require_token()
        super().reach()

    def _require_token(self) -> None:
        try:
            GoogleCredentialProvider(self._credentials)()
        except google.auth.exceptions.GoogleAuthError as error:
            raise StoreUnreachableError(
                url=self.url,
                why=f"Google gives no access token for the credentials ({type(error).__name__}).",
                fix="check that the credentials are still valid, and check the network.",
            ) from None

    def drop_unfinished(self, prefix: str) -> None:
        below = self._unfinished_below(prefix)
        try:
            with AuthorizedSession(self._credentials) as session:  # type: ignore[no-untyped-call]
                for key, upload in list(self._uploads(session, below)):
                    address = f"{self._bucket_url}/{quote(key, safe='')}"
                    answer = session.delete(address, params={"uploadId": upload}, timeout=_TIMEOUT_SECONDS)
                    if answer.status_code != _GONE:
                        answer.raise_for_status()
        except (requests.RequestException, google.auth.exceptions.GoogleAuthError, ElementTree.ParseError) as error:
            raise StoreReadError(url=self.url, key=prefix, why=type(error).__name__) from None

    def _uploads(self, session: Any, below: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the id of each unfinished multipart upload below a prefix of the bucket."""
        marker = {"key-marker": "", "upload-id-marker": ""}
        while True:
            query = {"uploads": "", "prefix": below} | {name: value for name, value in marker.items() if value}
            answer = session.get(self._bucket_url, params=query, timeout=_TIMEOUT_SECONDS)
            answer.raise_for_status()
            page = ElementTree.fromstring(answer.content)  # noqa: S314 - expat limits the size of entities.
            for upload in page.iterfind("{*}Upload"):
                yield upload.findtext("{*}Key", ""), upload.findtext("{*}UploadId", "")
            if page.findtext("{*}IsTruncated") != "true":
                return
            marker["key-marker"] = page.findtext("{*}NextKeyMarker", "")
            marker["upload-id-marker"] = page.findtext("{*}NextUploadIdMarker", "")

    @property
    def _bucket_url(self) -> str:
        return f"{self._base_url}/{quote(self.bucket, safe='')}"


def from_url(url: str, *, endpoint_url: str | None) -> GcsStore:
    """Return the store of a URL gs://bucket/prefix.

    Raises:
        StoreUnreachableError: the URL has another form, or no credentials are found.
    """
    place = place_of(url, form="gs://bucket/prefix")
    return GcsStore(bucket=place.bucket, prefix=place.prefix, endpoint_url=endpoint_url)

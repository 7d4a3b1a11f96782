"""A store in a container of Azure Blob Storage. The library obstore transfers the bytes and finds the credentials."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from segue.errors import MissingExtraError, StoreUnreachableError

try:
    import obstore
    import obstore.exceptions
    from obstore.store import AzureStore as ObstoreAzure

    from segue.stores.endpoint import CLIENT_TIMEOUT, checked_endpoint, client_options, place_of
    from segue.stores.objects import RETRY, ObjectStore
except ImportError:
    raise MissingExtraError(extra="azure", needed_for="a store on az://") from None

if TYPE_CHECKING:
    from obstore.store import AzureConfig, RetryConfig

_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_GIVEN = {"account_key", "sas_key", "token", "client_secret", "federated_token_file", "use_azure_cli"}
"""Settings of obstore that are credentials.

If the environment has none of these settings, obstore uses the machine's managed identity.
"""


class AzureStore(ObjectStore):
    """Objects below `container/prefix` of a storage account.

    The condition of `put_if_absent` is `If-None-Match: *`, which Azure answers with 409.
    """

    scheme, holder, cloud, variables = "az", "container", "Azure", "AZURE_..."

    def __init__(self, *, container: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        url = f"az://{container}"
        self._account = _account(checked_endpoint(url, endpoint_url))
        if not self._account:
            why, fix = "no storage account is named.", f"set {_ACCOUNT}, or [store] endpoint_url."
            raise StoreUnreachableError(url=url, why=why, fix=fix)
        super().__init__(bucket=container, prefix=prefix, endpoint_url=endpoint_url)

    def _opened(self, retry: RetryConfig, *, timeout: timedelta = CLIENT_TIMEOUT, signed: bool = True) -> ObstoreAzure:
        config: AzureConfig = {"account_name": self._account}
        if self._endpoint_url is not None:
            config["endpoint"] = self._endpoint_url
        if not signed:
            config["skip_signature"] = True
        return ObstoreAzure(
            self.bucket,
            prefix=self.prefix or None,
            config=config,
            client_options=client_options(self._endpoint_url, timeout),
            retry_config=retry,
        )

    def drop_unfinished(self, prefix: str) -> None:
        """Do nothing, because only Azure can remove uncommitted blocks. Azure removes them after a week."""
        self._unfinished_below(prefix)

    def _unreachable(self, error: Exception) -> StoreUnreachableError:
        is_generic = isinstance(error, obstore.exceptions.GenericError)
        if is_generic and not _GIVEN & set(self._opened(RETRY).config) and self._answers():
            return StoreUnreachableError(
                url=self.url,
                why="the environment has no credentials for Azure, and the machine has no managed identity.",
                fix="set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or the variables of a workload identity.",
            )
        return super()._unreachable(error)

    def _answers(self) -> bool:
        """Whether the storage account answers a request without credentials."""
        try:
            obstore.head(self._opened(RETRY | {"max_retries": 0}, signed=False), ".segue-check/anonymous")
        except obstore.exceptions.GenericError:
            return False
        except (obstore.exceptions.BaseError, FileNotFoundError):
            return True
        return True


def _account(endpoint_url: str | None) -> str:
    """Return the name of the storage account, from the environment or else from the endpoint.

    If neither contains the name, the text is empty.
    """
    if given := os.environ.get(_ACCOUNT):
        return given
    parts = urlsplit(endpoint_url or "")
    host = parts.hostname or ""
    # Emulators have the account in the path. In a host name, a private link or a zone may follow the account.
    of_host = host.partition(".")[0].removesuffix("-secondary") if ".blob." in host else ""
    return parts.path.strip("/") or of_host


def from_url(url: str, *, endpoint_url: str | None) -> AzureStore:
    """Return the store of a URL az://container/prefix.

    Raises:
        StoreUnreachableError: the URL has another form, or no storage account is named.
    """
    place = place_of(url, form="az://container/prefix")
    return AzureStore(container=place.bucket, prefix=place.prefix, endpoint_url=endpoint_url)

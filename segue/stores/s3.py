"""A store in an S3 bucket. The library obstore transfers the bytes, and boto3 finds the credentials."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.errors import MissingExtraError, StoreUnreachableError
from segue.stores.base import StoreReadError, check_by_writing

try:
    import boto3
    import botocore.config
    import botocore.exceptions
    import botocore.session
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store as ObstoreS3

    from segue.stores.botocore_random import use_own_random_stream
    from segue.stores.endpoint import (
        CLIENT_TIMEOUT,
        CONNECT_TIMEOUT,
        certificate_fault,
        client_options,
        is_payload_exposed,
        place_of,
    )
    from segue.stores.objects import FEW_RETRIES, ObjectStore
except ImportError:
    raise MissingExtraError(extra="s3", needed_for="a store on s3://") from None

if TYPE_CHECKING:
    from obstore.store import RetryConfig, S3Config

_DEFAULT_REGION = "us-east-1"
_CREDENTIALS_TTL = timedelta(minutes=10)
"""Time for which obstore uses credentials.

Obstore requests new credentials 5 min before this time ends. boto3 renews the credentials of a role 15 to 10 min before
they expire. Therefore credentials from boto3 are valid for at least 10 min.
"""
_FORBIDDEN = 403
"""Status of S3's answer to a request about the whole bucket, if a policy permits only objects below a prefix."""
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_READ_AT_ONCE = ("STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR")
"""Storage classes from which objects can be read without a restore (S3 user guide, "Storage classes")."""


class S3Store(ObjectStore):
    """Objects below `bucket/prefix` of AWS, or of another server with the S3 protocol.

    The condition of `put_if_absent` is `If-None-Match: *`, because the behaviour of `If-Match` differs between stores.
    """

    scheme, cloud, variables, ca_variable = "s3", "AWS", "AWS_...", "AWS_CA_BUNDLE"

    def __init__(
        self, *, bucket: str, prefix: str = "", endpoint_url: str | None = None, region: str | None = None
    ) -> None:
        use_own_random_stream()
        self._core = botocore.session.get_session()
        self._session = boto3.Session(botocore_session=self._core, region_name=region)
        super().__init__(bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)

    def _opened(self, retry: RetryConfig, *, timeout: timedelta = CLIENT_TIMEOUT) -> ObstoreS3:
        try:
            provider = Boto3CredentialProvider(self._session, ttl=_CREDENTIALS_TTL)
        except ValueError:
            raise StoreUnreachableError(
                url=self.url,
                why="boto3 finds no AWS credentials.",
                fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set a profile, or give the machine a role.",
            ) from None
        config: S3Config = {
            "region": self._session.region_name or _DEFAULT_REGION,
            # Over TLS only the request itself is signed, as in the AWS SDKs, because hashing a checkpoint once more
            # takes longer than sending it.
            "unsigned_payload": not is_payload_exposed(self._endpoint_url),
            # One request per object, because some servers permit bulk deletes only with rights for the whole bucket.
            "disable_bulk_delete": True,
        }
        if self._endpoint_url is not None:
            config["endpoint"] = self._endpoint_url
            config["virtual_hosted_style_request"] = False
        return ObstoreS3(
            self.bucket,
            prefix=self.prefix or None,
            config=config,
            client_options=client_options(self._endpoint_url, timeout, root_certificates=self._root_certificates),
            retry_config=retry,
            credential_provider=provider,
        )

    @cached_property
    def _root_certificates(self) -> bytes | None:
        """The CAs that boto3 trusts because of AWS_CA_BUNDLE, or of `ca_bundle` in a profile. The value is None if
        neither is set, or if the endpoint uses no TLS.

        Raises:
            StoreUnreachableError: the file cannot be read, or contains no certificate.
        """
        name = self._core.get_config_variable("ca_bundle")
        if name is None or (self._endpoint_url or "").startswith("http://"):
            return None
        try:
            ssl.create_default_context(cafile=name)
            found = Path(name).read_bytes()
        except OSError as error:  # ssl.SSLError is an OSError.
            raise self._unusable(name, error.strerror or type(error).__name__) from None
        if _CERTIFICATE not in found:  # OpenSSL also accepts other objects.
            raise self._unusable(name, f"no line {_CERTIFICATE.decode()}")
        return found

    def _unusable(self, name: str, why: str) -> StoreUnreachableError:
        return StoreUnreachableError(
            url=self.url,
            why=f"the file {name!r} with trusted CAs cannot be used ({why}).",
            fix=f"set {self.ca_variable}, or ca_bundle of the AWS profile, to a PEM file with certificates of CAs, or "
            "do not set it.",
        )

    def drop_unfinished(self, prefix: str) -> None:
        below = self._unfinished_below(prefix)
        try:
            client = self._client()
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=below):
                for upload in page.get("Uploads", ()):
                    client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            raise StoreReadError(url=self.url, key=prefix, why=type(error).__name__) from None

    def check(self) -> None:
        refusal = self._refusal()
        try:
            check_by_writing(self)
        except StoreUnreachableError as error:
            cause = self._first_write(self._opened(FEW_RETRIES))
            if (fault := certificate_fault(str(cause))) is not None:
                raise self.untrusted(fault) from None
            if refusal is None:
                raise
            why = f"{error.why.removesuffix('.')}, and {refusal.why}"
            raise StoreUnreachableError(url=self.url, why=why, fix=refusal.fix or "") from None

    def reach(self) -> None:
        self._refusal()

    def removed_by(self) -> str | None:
        try:
            rules = self._client().get_bucket_lifecycle_configuration(Bucket=self.bucket)["Rules"]
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchLifecycleConfiguration":
                return None
            raise StoreReadError(url=self.url, key="", why=error.response["Error"]["Code"]) from None
        except botocore.exceptions.BotoCoreError as error:
            raise StoreReadError(url=self.url, key="", why=type(error).__name__) from None
        found = [rule for rule in rules if removes(rule, f"{self.prefix}/" if self.prefix else "")]
        return f"the bucket's lifecycle rule {found[0].get('ID', '')!r} expires or archives objects" if found else None

    def _refusal(self) -> StoreUnreachableError | None:
        """If the client may not access the bucket as a whole, return the error. If it may, return None.

        Raises:
            StoreUnreachableError: the bucket does not exist, or the server does not answer.
        """
        try:
            self._client().head_bucket(Bucket=self.bucket)
        except botocore.exceptions.ClientError as error:
            refusal = self._refused(error)
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != _FORBIDDEN:
                raise refusal from None
            return refusal
        except (ValueError, botocore.exceptions.ParamValidationError):
            raise StoreUnreachableError(
                url=self.url,
                why=f"{self.bucket!r} at {self._endpoint_url or self.cloud} is not the address of a bucket.",
                fix="write the store as s3://bucket/prefix and the endpoint with http:// or https://.",
            ) from None
        except botocore.exceptions.BotoCoreError as error:
            if (fault := certificate_fault(str(error))) is not None:
                raise self.untrusted(fault) from None
            raise StoreUnreachableError(
                url=self.url,
                why=f"the server does not answer ({type(error).__name__}).",
                fix=f"check the endpoint ({self._endpoint_url or self.cloud}), the network and the region.",
            ) from None
        return None

    def _client(self) -> Any:
        config = botocore.config.Config(
            connect_timeout=CONNECT_TIMEOUT.total_seconds(), read_timeout=10, retries={"total_max_attempts": 2}
        )
        return self._session.client(
            "s3",
            endpoint_url=self._endpoint_url,
            region_name=self._session.region_name or _DEFAULT_REGION,
            config=config,
        )

    def _refused(self, error: Any) -> StoreUnreachableError:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 404:
            return self.missing_bucket()
        if status in (401, 403):
            return self.denied_bucket("the bucket's policy and the region")
        # An answer to HEAD has no text with the exact error.
        why = f"the bucket answered {status}."
        fix = "check the endpoint, the region, and whether the session token has expired."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)


def from_url(url: str, *, endpoint_url: str | None, region: str | None) -> S3Store:
    """Return the store of a URL s3://bucket/prefix.

    Raises:
        StoreUnreachableError: the URL has another form, or no credentials are found.
    """
    place = place_of(url, form="s3://bucket/prefix")
    return S3Store(bucket=place.bucket, prefix=place.prefix, endpoint_url=endpoint_url, region=region)


def removes(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule deletes objects below the prefix, or moves them to storage that needs a restore.

    The function is pure and follows `GetBucketLifecycleConfiguration` of the S3 API. It ignores rules about unfinished
    uploads and about old object versions, because these rules do not remove current objects.
    """
    condition = rule.get("Filter", {})
    both = condition.get("And", {})
    has_tags = "Tag" in condition or bool(both.get("Tags"))  # segue sets no tags.
    of = rule.get("Prefix") or condition.get("Prefix") or both.get("Prefix") or ""
    archives = any(move.get("StorageClass") not in _READ_AT_ONCE for move in rule.get("Transitions", ()))
    acts = bool(rule.get("Expiration", {}).keys() & {"Days", "Date"}) or archives
    overlaps = prefix.startswith(of) or of.startswith(prefix)
    return rule.get("Status") == "Enabled" and not has_tags and acts and overlaps

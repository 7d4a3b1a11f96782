"""The files that a run trains on, and what proves that every segment reads the same ones."""

from __future__ import annotations

from pydantic import Field, field_validator

from segue.credentials import without_credentials
from segue.records import FiniteValue


class DataFile(FiniteValue):
    """One file and its content."""

    path: str = Field(min_length=1, description="Absolute path, or URL that fsspec can read, e.g. s3://bucket/key.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its bytes.")
    size_bytes: int = Field(ge=0, description="Number of its bytes.")
    rows: int | None = Field(None, ge=0, description="Number of its rows, where its format tells.")


class DataAccess(FiniteValue):
    """How files are reached. It never holds credentials; s3fs, gcsfs and adlfs find them in the environment."""

    endpoint_url: str | None = Field(
        None, pattern=r"^https?://[^/\s]+", description="S3 endpoint of s3:// files, e.g. http://127.0.0.1:9000."
    )
    cache_folder: str | None = Field(
        None, description="Folder for copies of remote files; None: segue/data in the user's cache folder."
    )

    @field_validator("endpoint_url")
    @classmethod
    def _has_no_credentials(cls, url: str | None) -> str | None:
        return url if url is None else without_credentials(url)


class DataSpec(DataAccess):
    """The files of a run."""

    files: tuple[DataFile, ...] = Field(
        min_length=1, description="Files with their hashes, in order; checked before each segment trains on them."
    )

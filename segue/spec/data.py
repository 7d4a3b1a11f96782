"""Describes the files on which a run trains. Hashes prove that every segment reads the same files."""

from __future__ import annotations

import codecs
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.credentials import without_credentials
from segue.records import FiniteValue


class DataFile(FiniteValue):
    """One file of the data, with the hash of its content."""

    path: str = Field(min_length=1, description="Absolute path, or URL that fsspec can read, e.g. s3://bucket/key.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file.")
    size_bytes: int = Field(ge=0, description="Size of the file in bytes.")
    rows: int | None = Field(None, ge=0, description="Number of rows; None if the file format does not store it.")


_CHARACTER = r"^[ -~\t]$"
ColumnType = Literal["text", "integer", "number", "boolean", "time"]


class Reading(FiniteValue):
    """The rules for reading CSV files, and the types of columns whose type cannot be inferred from the values."""

    encoding: str | None = Field(
        None, description="Encoding of CSV files, e.g. cp1252; None: the encoding of the byte order mark, or UTF-8."
    )
    delimiter: str | None = Field(
        None,
        pattern=_CHARACTER,
        description="Character between cells; None: one of , ; | and tab, detected in the header.",
    )
    quote: str = Field(
        '"',
        pattern=_CHARACTER,
        description="Quote character around a cell; inside the cell, two quote characters mean one.",
    )
    escape: str | None = Field(
        None,
        pattern=_CHARACTER,
        description="Escape character before a delimiter or quote inside a cell; None: no escape character.",
    )
    decimal: str = Field(".", pattern=r"^[.,]$", description="Decimal separator of numbers: a point or a comma.")
    thousands: str | None = Field(
        None, pattern=r"^[^\w+-]$|^_$", description="Thousands separator of numbers; None: no separator."
    )
    nulls: tuple[str, ...] | None = Field(
        None,
        description="Texts that mean a missing value in every column, such as '' and '-'. None: the empty text; in "
        "columns that are not text, also NA, NaN, null and similar texts.",
    )
    types: dict[str, ColumnType] = Field(
        default_factory=dict,
        description="Types of columns by name, in all files; the types of other columns are inferred from the values.",
    )

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        try:
            return None if name is None else codecs.lookup(name).name
        except LookupError:
            raise PydanticCustomError("reading", "must be an encoding that Python knows, e.g. cp1252") from None

    @field_validator("thousands")
    @classmethod
    def _differs(cls, sign: str | None, info: ValidationInfo) -> str | None:
        if sign is not None and sign == info.data.get("decimal"):
            raise PydanticCustomError("reading", "must differ from decimal")
        return sign


class DataAccess(FiniteValue):
    """The rules for accessing and reading files, without credentials.

    The libraries s3fs, gcsfs and adlfs find credentials in the environment.
    """

    endpoint_url: str | None = Field(
        None, pattern=r"^https?://[^/\s]+", description="S3 endpoint of s3:// files, e.g. http://127.0.0.1:9000."
    )
    cache_folder: str | None = Field(
        None, description="Folder for copies of remote files; None: segue/data in the user's cache folder."
    )
    reading: Reading = Field(Reading(), description="How files are read.")

    @field_validator("endpoint_url")
    @classmethod
    def _has_no_credentials(cls, url: str | None) -> str | None:
        return url if url is None else without_credentials(url)


class DataSpec(DataAccess):
    """The files of a run."""

    files: tuple[DataFile, ...] = Field(
        min_length=1, description="Files with their hashes, in order; the hashes are checked before each segment."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Types of the columns in all files of a retraining's window, as segue.data_frame returns them; "
        "empty: the types that the files of this run have.",
    )

    @property
    def passed_reading(self) -> dict[str, Any]:
        """The reading rules and column types for `segue.data_frame`. The dict is empty if the spec has none."""
        known = {"rules": self.reading.model_dump(mode="json", exclude_defaults=True), "columns": self.columns}
        return {name: value for name, value in known.items() if value}

    @property
    def taken(self) -> frozenset[str]:
        """The config keys under which the program or recipe gets the files and the reading rules."""
        return frozenset({"data"} | ({"reading"} if self.passed_reading else set()))

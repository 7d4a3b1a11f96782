"""The files that a run trains on, and the proof that every segment reads the same ones."""

from __future__ import annotations

import codecs
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.credentials import without_credentials
from segue.records import FiniteValue


class DataFile(FiniteValue):
    """One file and its content."""

    path: str = Field(min_length=1, description="Absolute path, or URL that fsspec can read, e.g. s3://bucket/key.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its bytes.")
    size_bytes: int = Field(ge=0, description="Number of its bytes.")
    rows: int | None = Field(None, ge=0, description="Number of its rows, if its format tells.")


_CHARACTER = r"^[ -~\t]$"
ColumnType = Literal["text", "integer", "number", "boolean", "time"]


class Reading(FiniteValue):
    """What CSV files do not tell of themselves, and types of columns that their values do not tell."""

    encoding: str | None = Field(
        None, description="Encoding of CSV files, e.g. cp1252; None: UTF-8, or that of a byte order mark."
    )
    delimiter: str | None = Field(
        None,
        pattern=_CHARACTER,
        description="Character between cells; None: the one of , ; | and tab that the header has.",
    )
    quote: str = Field('"', pattern=_CHARACTER, description="Character around cells, doubled inside them.")
    escape: str | None = Field(
        None,
        pattern=_CHARACTER,
        description="Escape character before a delimiter or quote that belongs to a cell; None: there is none.",
    )
    decimal: str = Field(".", pattern=r"^[.,]$", description="Decimal sign of numbers: a point or a comma.")
    thousands: str | None = Field(
        None, pattern=r"^[^\w+-]$|^_$", description="Character between groups of three digits; None: there is none."
    )
    nulls: tuple[str, ...] | None = Field(
        None,
        description="Cells without a value, in every column, such as '' and '-'; None: empty cells, and in columns "
        "that are not text also NA, NaN, null and the like.",
    )
    types: dict[str, ColumnType] = Field(
        default_factory=dict,
        description="Types of columns, in any file; the type of any other column follows from its values.",
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
    """How files are reached and read. It holds no credentials; s3fs, gcsfs and adlfs find them in the environment."""

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
        min_length=1, description="Files with their hashes, in order; checked before each segment trains on them."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Types of the columns in all files of a retraining's window, as segue.data_frame gives them; "
        "empty: those that these files have.",
    )

    @property
    def passed_reading(self) -> dict[str, Any]:
        """How the files are read, as `segue.data_frame` gets it; empty if the spec does not say."""
        known = {"rules": self.reading.model_dump(mode="json", exclude_defaults=True), "columns": self.columns}
        return {name: value for name, value in known.items() if value}

    @property
    def taken(self) -> frozenset[str]:
        """The entries of the config that these files take."""
        return frozenset({"data"} | ({"reading"} if self.passed_reading else set()))

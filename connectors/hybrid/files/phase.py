"""The phase of files: Parquet, ORC, JSON or CSV in directories."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError

from ..phases import DecoderOf, Position
from .columnar import ParquetFormat
from .entries import DataFile
from .formats import Format, Unreadable
from .listed import ListedPhase
from .listing import Listed, list_files
from .manifest import read_manifest, write_manifest
from .options import FileOptions
from .orcfiles import OrcFormat
from .partitioning import inferred_type, values_in
from .stores import store_of
from .text import CsvFormat, JsonFormat

__all__ = ["FilePhase"]

_log = logging.getLogger(__name__)


class FilePhase(ListedPhase):
    """Reads the files that exist when the query first starts, each row once.

    The list of files is written to ``metadataLocation``, named by the digest of its content. Positions contain only
    that name. So they stay small, and a replay or a restart reads the same files, whatever was added since. A file that
    has changed since it was listed is an error, or is skipped with ``failOnDataLoss=false``. Other content is never
    read instead.

    Parameters
    ----------
    name : str
    options : mapping
        See `backlog_spark.connectors.hybrid.files.options.FileOptions`.
    others : collection of str
        Names of options that other modules read, for example the decoder's.
    decoder_of : callable, optional
        For JSON and CSV: makes the decoder of records with given columns (see `connectors.hybrid.files.text`). May be
        set later.

    Raises
    ------
    SettingError
    """

    def __init__(
        self, name: str, options: Mapping[str, str], others: Collection[str] = (), decoder_of: DecoderOf | None = None
    ) -> None:
        parsed = FileOptions.parse(options, others)
        super().__init__(name, _format(parsed), parsed.read)
        self.options = parsed
        self.decoder_of = decoder_of

    @property
    def decoder_of(self) -> DecoderOf | None:
        """Makes the decoder. Not used for Parquet and ORC."""
        return self.format.decoder_of if isinstance(self.format, (JsonFormat, CsvFormat)) else None

    @decoder_of.setter
    def decoder_of(self, given: DecoderOf | None) -> None:
        if isinstance(self.format, (JsonFormat, CsvFormat)):
            self.format.decoder_of = given

    def schema(self) -> pa.Schema | None:
        files = self._listing()
        return self._schema_of(files[0], files) if files else None

    def columns_at_hand(self) -> list[pa.Schema] | None:
        files = self._listing()
        # The oldest and the newest file. Files between them may have other columns.
        found = [self._schema_of(file, files) for file in dict.fromkeys([*files[:1], *files[-1:]])]
        return [schema for schema in found if schema is not None] or None

    def _schema_of(self, file: Listed, files: Sequence[Listed]) -> pa.Schema | None:
        """The columns of one file, and of all directories."""
        store, found = self._store(), file.found
        with store.open(found.path) as source:
            try:
                schema = self.format.schema(source)
            except Unreadable as error:
                raise BacklogError(
                    f"{store.name(found.path)} cannot be read as {self.format.name}: {error}.",
                    "Set fileFormat, or exclude the file.",
                ) from None
        if schema is None:
            return None
        values: dict[str, set[str | None]] = {}
        for file in files:
            for column, value in values_in(file.found.path[file.below :]):
                values.setdefault(column, set()).add(value)
        own = [field for field in schema if field.name.casefold() not in {name.casefold() for name in values}]
        return pa.schema([*own, *(pa.field(name, inferred_type(texts)) for name, texts in values.items())])

    def _begin(self) -> Position:
        files = self._listing()
        if not files:
            _log.warning("%s: there is no file in %s: the phase is empty", self.name, ", ".join(self.options.paths))
        store, directory = self._metadata()
        return {"manifest": write_manifest(store, directory, files), "files": len(files), "file": 0, "offset": 0}

    def _present(self) -> list[DataFile]:
        return [
            DataFile(f.found.path, f.found.size, f.found.tag, values_in(f.found.path[f.below :]))
            for f in self._listing()
        ]

    def _listing(self) -> list[Listed]:
        paths = [store_of(path, self._storage)[1] for path in self.options.paths]
        base = store_of(self.options.base_path, self._storage)[1] if self.options.base_path else ""
        return list_files(
            self._store(),
            paths,
            base=base,
            name_pattern=self.options.name_pattern,
            has_partitions=not self.options.flat,
            may_be_empty=self.options.may_be_empty,
        )

    @property
    def _url(self) -> str:
        return self.options.paths[0]

    def _fixed(self, position: Position) -> dict[str, Any]:
        return {"manifest": position["manifest"]}

    def _list(self, position: Position) -> Sequence[DataFile]:
        return read_manifest(*self._metadata(), position["manifest"])


def _format(options: FileOptions) -> Format:
    if options.format == "json":
        return JsonFormat()
    if options.format == "csv":
        return CsvFormat(options.csv)
    return OrcFormat(options.time_zone) if options.format == "orc" else ParquetFormat()

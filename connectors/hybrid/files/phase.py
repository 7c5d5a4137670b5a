"""The phase of files: Parquet, ORC, JSON or CSV in directories."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from backlog_spark.common.stores import arguments_for, scheme_of, store_of
from backlog_spark.errors import BacklogError

from ..evolution import Evolution
from ..phases import DecoderOf, Position
from .entries import DataFile, Piece
from .formats import Unreadable
from .found import gathered
from .known_formats import format_of
from .listed import ListedPhase
from .listing import Listed, walk_files
from .manifest import Manifest, read_manifest, write_manifest
from .options import FileOptions
from .partitioning import inferred_type
from .reading import Reader
from .schemas.inferring import inferred_schema
from .schemas.options import RESCUED
from .text import RecordFormat

__all__ = ["FilePhase"]

_log = logging.getLogger(__name__)
# In positions of CSV: the defaults of its options that they were made with. 1 is left out.
_DEFAULTS = {"csvDefaults": 2}


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
        super().__init__(name, format_of(parsed), parsed.read)
        self.options = parsed
        self.decoder_of = decoder_of
        self.infers_schema = parsed.schemas.is_on

    @property
    def decoder_of(self) -> DecoderOf | None:
        """Makes the decoder. Not used for Parquet and ORC."""
        return self.format.decoder_of if isinstance(self.format, RecordFormat) else None

    @decoder_of.setter
    def decoder_of(self, given: DecoderOf | None) -> None:
        if isinstance(self.format, RecordFormat):
            self.format.decoder_of = given

    def schema(self) -> pa.Schema | None:
        if self.options.schemas.is_on:
            return self.inferred()
        if self.format.is_untyped:
            return None
        files = Manifest(self._listing())
        return self._schema_of(files[0], files) if files else None

    def inferred(self) -> pa.Schema | None:
        if self.options.format in ("text", "binaryFile"):
            return None
        place = self._stored_at()
        return inferred_schema(
            self.options, self.format, self._store(), self._listing, place, stores=self.stores_schema
        )

    def evolution(self, *, is_inferred: bool) -> Evolution | None:
        options = self.options.schemas
        if not is_inferred:
            options.refuse_declared()
            if options.mode in ("", "none") and not options.rescued:
                return None
        mode = options.mode or ("addNewColumns" if is_inferred else "none")
        rescued = options.rescued.strip() or (RESCUED if mode != "none" else "")
        return replace(self._stored_at(), rescued=rescued, mode=mode)

    def _stored_at(self) -> Evolution:
        """Where the schema is stored."""
        location = self.options.schemas.location.strip() or self._read.metadata_location
        plain = scheme_of(self._url) in (scheme_of(location), "file")
        storage = arguments_for(location, self._read.storage, plain=plain)
        return Evolution(location=location, storage=storage, infers_types=self.options.schemas.infers_types)

    def check(self) -> None:
        if not (self._is_csv and self.options.csv.header):
            return
        files = self._present()
        for file in dict.fromkeys([*files[:1], *files[-1:]]):
            # The header, which may follow a byte order mark.
            for _ in self._reader().rows(Piece(file, 0, 4), ()):
                break

    def columns_at_hand(self) -> list[pa.Schema] | None:
        if self._columns is not None and self._columns.evolution is not None:
            return None  # files may have other columns and types
        files = Manifest(self._listing())
        # The oldest and the newest file. Files between them may have other columns.
        found = [self._schema_of(files[at], files) for at in sorted({0, len(files) - 1})] if files else []
        return [schema for schema in found if schema is not None] or None

    def _schema_of(self, file: DataFile, files: Iterable[DataFile]) -> pa.Schema | None:
        """The columns of one file, and of all directories."""
        store = self._store()
        with store.open(file.path) as source:
            try:
                schema = self.format.schema(source)
            except Unreadable as error:
                raise BacklogError(
                    f"{store.name(file.path)} cannot be read as {self.format.name}: {error}.",
                    "Set fileFormat, or exclude the file.",
                ) from None
        if schema is None:
            return None
        values: dict[str, set[str | None]] = {}
        for each in files:
            for column, value in each.values:
                values.setdefault(column, set()).add(value)
        own = [field for field in schema if field.name.casefold() not in {name.casefold() for name in values}]
        return pa.schema([*own, *(pa.field(name, inferred_type(texts)) for name, texts in values.items())])

    def _begin(self) -> Position:
        files = self._listing()
        if not len(files):
            _log.warning("%s: there is no file in %s: the phase is empty", self.name, ", ".join(self.options.paths))
        store, directory = self._metadata()
        fixed = {"manifest": write_manifest(store, directory, files), **(_DEFAULTS if self._is_csv else {})}
        return {**fixed, "files": len(files), "file": 0, "offset": 0}

    @property
    def _is_csv(self) -> bool:
        return self.options.format == "csv"

    def _reader(self) -> Reader:
        reader = super()._reader()
        assert self._columns is not None
        reader.evolution = self._columns.evolution
        return reader

    def _present(self) -> Sequence[DataFile]:
        return Manifest(self._listing())

    def _listing(self) -> pa.Table:
        """In the order of Spark's file stream."""
        return gathered(self._walk(may_be_empty=self.options.may_be_empty), ["modified", "path"])

    def _walk(self, *, may_be_empty: bool, after: str = "") -> Iterator[Listed]:
        paths = [store_of(path, self._storage)[1] for path in self.options.paths]
        base = store_of(self.options.base_path, self._storage)[1] if self.options.base_path else ""
        return walk_files(
            self._store(),
            paths,
            base=base,
            name_pattern=self.options.name_pattern,
            has_partitions=not self.options.flat,
            may_be_empty=may_be_empty,
            modified=(self.options.after, self.options.before),
            after=after,
        )

    @property
    def _url(self) -> str:
        return self.options.paths[0]

    def _fixed(self, position: Position) -> dict[str, Any]:
        if "manifest" not in position:
            raise BacklogError(
                f"The checkpoint's position in the phase {self.name} was made with discovery=continuous.",
                "Set discovery=continuous, or start with a new checkpoint.",
            )
        return {name: position[name] for name in ("manifest", *_DEFAULTS) if name in position}

    def _list(self, position: Position) -> Sequence[DataFile]:
        if self._is_csv and not _DEFAULTS.keys() <= position.keys():
            self.options.csv.check_former()
        return read_manifest(*self._metadata(), position["manifest"])

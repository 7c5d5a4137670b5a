"""Takes the stored schema of a source, or infers one from a sample of its files and stores it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError, SettingError

from ...evolution import Evolution
from ..formats import Format, Unreadable
from ..manifest import Manifest
from ..options import FileOptions
from ..partitioning import inferred_type, values_in
from .fields import added, ddl, shown
from .hints import Unfit, hinted, hints_text
from .stored import StoredSchema
from .types import as_strings, complete

__all__ = ["inferred_schema"]


def inferred_schema(
    options: FileOptions,
    form: Format,
    store: Store,
    listing: Callable[[], pa.Table],
    place: Evolution,
    *,
    stores: bool = True,
) -> pa.Schema:
    """The columns of a phase's files.

    Parameters
    ----------
    options : FileOptions
    form : Format
    store : Store
        Of the files.
    listing : callable
        Lists the files. Called only if there is no stored schema.
    place : Evolution
        Where the schema is stored.
    stores : bool
        Whether to store a new schema. Default true.

    Raises
    ------
    BacklogError
        If there is no file to infer from, the files do not fit each other, or the stored schema does not fit the hints.
    """
    stored = StoredSchema(place)
    schema = stored.current(stores=stores)
    if schema is not None:
        _check_hints(options, schema)
        return schema
    if options.format == "csv" and not options.schemas.header_is_given:
        raise SettingError(
            "header", None, "is needed to infer the columns of CSV.",
            "Set header=true if the first line of each file has names. With header=false they are _c0, _c1 and so on.",
        )  # fmt: skip
    files = listing()
    schema = _with_hints(options, _inferred(options, form, store, files))
    if not len(schema):
        what = "the files have no columns" if len(files) else "no file is there"
        raise SettingError(
            "path", ", ".join(options.paths), f"{what} to infer a schema from.",
            "Start when there is one, set schema, or give all columns as schemaHints.",
        )  # fmt: skip
    if stores:
        stored.begin(schema)
    return schema


def _inferred(options: FileOptions, form: Format, store: Store, files: pa.Table) -> pa.Schema:
    """The columns of a sample of files, with those of all directories."""
    listed, most = Manifest(files), options.schemas.sample_files
    spread = np.linspace(0, len(listed) - 1, min(most, len(listed)))
    chosen: list[int] = sorted({round(at) for at in spread.tolist()})
    per_file = options.schemas.sample_bytes // max(1, len(chosen))
    hints = {hint.path[0].casefold() for hint in options.schemas.hints if len(hint.path) == 1}

    def sampled(index: int) -> tuple[str, pa.Schema | None]:
        path = listed[index].path
        name = store.name(path)
        with store.open(path) as source:
            try:
                return name, form.sample(source, name, per_file)
            except Unreadable as error:
                raise BacklogError(
                    f"{name} cannot be read as {form.name}: {error}.", "Set fileFormat, or exclude the file."
                ) from None

    found: dict[str, tuple[pa.DataType, str]] = {}
    for name, columns in store.each(sampled, chosen):
        for field in columns or ():
            kind, other = found.get(field.name, (pa.null(), name))
            merged = form.merged(kind, field.type)
            if merged is None and field.name.casefold() not in hints:
                raise SettingError(
                    "schemaHints", None,
                    f"the column {field.name} is {shown(kind)} in {other} and {shown(field.type)} in {name}.",
                    f'Name its type, such as schemaHints="{field.name} STRING". Values of another type are rescued.',
                )  # fmt: skip
            found[field.name] = kind if merged is None else merged, name
    return _completed(options, form, pa.schema([(name, kind) for name, (kind, _) in found.items()]), files)


def _completed(options: FileOptions, form: Format, schema: pa.Schema, files: pa.Table) -> pa.Schema:
    fields = sorted(schema, key=lambda field: field.name) if form.name == "json" else list(schema)
    hints = options.schemas.hints
    nested = {hint.path[0].casefold() for hint in hints if len(hint.path) > 1}
    is_text = form.is_untyped and not options.schemas.infers_types
    made: list[pa.Field] = []
    for field in fields:
        kind = complete(field.type)
        if is_text:
            has_hints = field.name.casefold() in nested and kind is not None
            kind = as_strings(kind) if has_hints else pa.string()
        # Columns that differ in case only cannot both be columns of Spark. The second one is rescued.
        if kind is not None and field.name.casefold() not in {other.name.casefold() for other in made}:
            made.append(field.with_type(kind))
    directories = _directories(files)
    known = {name.casefold() for name in directories}
    return pa.schema(
        [
            *(field for field in made if field.name.casefold() not in known),
            *((name, pa.string() if is_text else inferred_type(values)) for name, values in directories.items()),
        ]
    )


def _directories(files: pa.Table) -> dict[str, set[str | None]]:
    """The values of directories ``name=value``, by name."""
    below = files.column("below")
    paths = files.column("path")
    # Of the files in one directory one is enough.
    parents = pc.unique(
        pc.binary_join_element_wise(below.cast(pa.string()), pc.replace_substring_regex(paths, r"[^/]*$", ""), "\0")
    )
    found: dict[str, set[str | None]] = {}
    for text in parents.to_pylist():
        at, _, path = text.partition("\0")
        for name, value in values_in(path[int(at) :]):
            found.setdefault(name, set()).add(value)
    return found


def _with_hints(options: FileOptions, schema: pa.Schema) -> pa.Schema:
    try:
        return hinted(schema, options.schemas.hints)
    except Unfit as unfit:
        raise SettingError(
            "schemaHints", hints_text(options.schemas.hints), f"does not fit the files: {unfit}.",
            "Name the whole column and its type, such as \"a STRUCT<b: INT>\".",
        ) from None  # fmt: skip


def _check_hints(options: FileOptions, schema: pa.Schema) -> None:
    """Refuse hints that the stored schema was not made with."""
    # Structs may have got more fields since.
    if added(_with_hints(options, schema), schema) != schema:
        raise SettingError(
            "schemaHints", hints_text(options.schemas.hints), f"differs from the stored schema: {ddl(schema)}.",
            "Hints count when a schema is first inferred. Put them back, or start with a new checkpoint and "
            "schemaLocation.",
        )  # fmt: skip

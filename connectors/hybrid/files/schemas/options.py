"""The options about the columns of files without a declared schema, each declared once (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import flag, integer, option, options_of, parsed, text, values
from backlog_spark.spi.user_options import UserOptions

from ..byte_sizes import byte_size
from .hints import Hint, Unfit, hints_text, parse_hints

__all__ = ["MODES", "RESCUED", "SchemaOptions"]

MODES = ("addNewColumns", "rescue", "failOnNewColumns", "none")
RESCUED = "_rescued_data"
# Inference is one process that parses some 5 MB of JSON per second.
_SAMPLE_BYTES = 16 << 20
# These make a stream whose files declare columns infer and store them.
_STARTING = ("schemaLocation", "schemaEvolutionMode", "inferColumnTypes", "schemaHints")


def _hints(given: UserOptions, name: str) -> tuple[Hint, ...]:
    try:
        return parse_hints(given.text(name))
    except Unfit as unfit:
        raise SettingError(
            name, given.text(name), f"cannot be parsed: {unfit}.",
            'Write names and types of Spark, such as "a INT, b.c DECIMAL(10,2), d MAP<STRING, INT>".',
        ) from None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Columns of files without a declared schema. Names as in Databricks Auto Loader, without `cloudFiles.`."""

    location: str = text("schemaLocation", type="path", shown="metadataLocation", spark="cloudFiles.schemaLocation")
    """Directory for the inferred schema: its versions are in `_schemas` below it. Keep it as long as the checkpoint.
    Only one source may use it. Setting it makes Parquet, ORC and Avro infer and store their columns too."""
    mode: str = option(
        "schemaEvolutionMode", lambda given, name: given.choice(name, MODES, ""), "",
        shown="addNewColumns; with a schema none", choices=MODES, spark="cloudFiles.schemaEvolutionMode",
    )  # fmt: skip
    """What happens if a file has a column that the schema does not have: [new columns](#new-columns)."""
    infers_types: bool = flag("inferColumnTypes", spark="cloudFiles.inferColumnTypes")
    """json, csv: columns get the types of their values, as in Spark's batch reader. false: all columns are strings."""
    hints: tuple[Hint, ...] = option(
        "schemaHints", _hints, (), type="DDL", bounds='such as "a INT, b.c DATE"', spark="cloudFiles.schemaHints"
    )
    """Types of some columns or nested fields, in place of the inferred ones. Columns that no file has are added. Paths
    go through arrays with `element`, and through maps with `key` and `value`."""
    rescued: str = text(
        "rescuedDataColumn", type="name", shown=f"{RESCUED} if the schema is inferred and the mode is not none",
        spark="rescuedDataColumn",
    )  # fmt: skip
    """Text column at the end for [values that do not fit](#rescued-data). With `readStream.schema(…)` declare it."""
    sample_files: int = integer(
        "schemaInferenceFiles", 1000, 1, spark="spark.databricks.cloudFiles.schemaInference.sampleSize.numFiles"
    )
    """The most files to infer a schema from. Of more files those are taken that are evenly spread."""
    sample_bytes: int = option(
        "schemaInferenceBytes", lambda given, name: byte_size(given, name, _SAMPLE_BYTES), type="bytes", shown="16m",
        bounds=">= 1", spark="spark.databricks.cloudFiles.schemaInference.sampleSize.numBytes",
    )  # fmt: skip
    """json, csv: the most bytes to infer a schema from. Each file of the sample gives its beginning."""
    # The given options.
    given: frozenset[str] = parsed(
        lambda given: frozenset(o.name for o in options_of(SchemaOptions) if given.has(o.name)), default=frozenset()
    )
    # Whether the user has said if files of CSV have a header.
    header_is_given: bool = parsed(lambda given: given.has("header"), default=False)

    @property
    def is_on(self) -> bool:
        """Whether the user asks for an inferred and stored schema."""
        return any(name in self.given for name in _STARTING)

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the options.

        Raises
        ------
        SettingError
        """
        found = cls(**values(cls, given))
        if found.mode in MODES[:3] and given.has("rescuedDataColumn") and not found.rescued.strip():
            raise SettingError(
                "rescuedDataColumn", found.rescued, f"is empty, and schemaEvolutionMode={found.mode} needs it.",
                f"Name a column, leave it out for {RESCUED}, or set schemaEvolutionMode=none.",
            )  # fmt: skip
        return found

    def refuse_declared(self) -> None:
        """Refuse the options that count only for an inferred schema.

        Raises
        ------
        SettingError
        """
        for name in ("schemaHints", "inferColumnTypes"):
            if name in self.given:
                raise SettingError(
                    name, hints_text(self.hints) if name == "schemaHints" else "true" if self.infers_types else "false",
                    "counts only for an inferred schema, but the schema is declared.",
                    f"Leave out {name}, or the schema.",
                )  # fmt: skip
        if self.mode == MODES[0]:
            raise SettingError(
                "schemaEvolutionMode", self.mode, "is not possible with a declared schema.",
                "Leave out the schema, and give its columns as schemaHints. Or set rescue, failOnNewColumns or none.",
            )  # fmt: skip

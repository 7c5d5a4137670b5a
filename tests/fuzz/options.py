"""Values of the options of both sources, alone and together, and schemas that are stored for files."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql.types import ArrayType, DateType, DoubleType, MapType, StringType, StructType

from backlog_spark.connectors.hybrid.evolution import Evolution
from backlog_spark.connectors.hybrid.files.schemas.stored import StoredSchema
from backlog_spark.errors import SettingError
from backlog_spark.spi.registry import check_options, discover, documented_options
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong, as_text, mutated_json, mutated_text

__all__ = ["KINDS"]

_SECRET = "fuzz-s3cret-0816"
_VALID: dict[str, list[dict[str, str]]] = {
    "mysql_cdc": [
        {"host": "h", "user": "u", "password": _SECRET, "table": "a.b"},
        {
            "host": "h",
            "user": "u",
            "table": "a.b,a.c",
            "startup.mode": "latest",
            "columns.exclude": "a.b.c",
            "serverId": "5400-5499",
        },
        {"host": "h", "user": "u", "tablePattern": "shop\\..*", "format": "debezium", "metadataColumns": "_commit_seq"},
        {
            "host": "h",
            "user": "u",
            "table": "a.b",
            "intervalDuringBacklog": "10 minutes",
            "interval": "1 s",
            "zeroDate": "error",
        },
    ],
    "hybrid": [
        {"fileFormat": "parquet", "path": "/x", "phases": "files", "metadataLocation": "/m"},
        {"path": "/x", "fileFormat": "csv", "phases": "files", "metadataLocation": "/m", "sep": ";", "header": "true"},
        {
            "phases": "kafka",
            "subscribe": "t",
            "kafka.bootstrap.servers": "k:9092",
            "valueFormat": "json",
            "metadataLocation": "/m",
        },
        {
            "phases": "old:files,new:kafka",
            "phase.old.path": "/x",
            "phase.old.fileFormat": "json",
            "phase.new.subscribe": "t",
            "kafka.bootstrap.servers": "k:9092",
            "metadataLocation": "/m",
            "startingOffsets": "earliest",
        },
        {"phases": "delta", "path": "/x", "versionAsOf": "3", "metadataLocation": "/m"},
    ],
}
_WORDS = (  # noqa: SIM905
    "true false 0 1 -1 5 1.5 1e3 99999999999999999999 9223372036854775808 ² ٣ 1_000 10 s 5 minutes -5 s 1e9 days "
    'NaN inf {} [] {"t":{"0":5}} {"t":[0]} {"t":{"0":-3}} latest earliest kafka files delta a.b a..b .* ( [ '
    "a{2,1} (?P<x> /x s3://b/k file:/// 5-9 9-5 1-99999999999 utf-8 UTF-16 2020-01-01 2020-13-45T99:99 "
    "Europe/Berlin +25:00 yyyy-MM-dd yyyy'T a:b a:b:c , ; : \\t \\u0000"
).split()


@functools.cache
def _names(source: str) -> list[str]:
    discover()
    return [o.name.replace("*", "x") for o in documented_options(source)]


def _valid(chance: random.Random) -> tuple[Any, Any]:
    source = chance.choice(("mysql_cdc", "hybrid"))
    return (source, dict(chance.choice(_VALID[source]))), None


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    source, options = found[0], dict(found[1])
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice([*options, *chance.sample(_names(source), 3)])
        match chance.randrange(6):
            case 0:
                options.pop(name, None)
            case 1 | 2:
                options[name] = chance.choice(_WORDS)
            case 3:
                options[name] = " ".join(chance.sample(_WORDS, 2))
            case 4:
                options[mutated_text(chance, name, "x")] = options.get(name, "1")
            case _:
                options[name] = mutated_text(chance, options.get(name, chance.choice(_WORDS)), chance.choice(_WORDS))
    return source, options


def _judge(found: Any, told: Any) -> None:
    source, options = found
    try:
        check_options(source, options)
    except SettingError as error:
        if options.get("password") == _SECRET and _SECRET in str(error):
            raise Wrong("the error has the password") from None
        raise


# -- schemas ------------------------------------------------------------------------------------------------------

_directory: Path | None = None


def _schema(chance: random.Random) -> tuple[Any, Any]:
    inner = StructType().add("a", "integer").add("b", ArrayType(DateType()))
    schema = StructType().add("id", "long").add("v", "string").add("d", "decimal(12,2)").add("at", "timestamp")
    schema = schema.add("s", inner).add("m", MapType(StringType(), DoubleType()))
    found = StructType().add("more", "integer").add("s", StructType().add("c", "string"))
    return {"schema": schema.jsonValue(), "found": found.jsonValue()}, None


def _judge_schema(found: Any, told: Any) -> None:
    global _directory
    if _directory is None:
        _directory = Path(tempfile.mkdtemp(prefix="fuzz-schemas-"))
        (_directory / "_schemas").mkdir()
    if not isinstance(found, str | dict) or (isinstance(found, dict) and not {"schema", "found"} <= found.keys()):
        raise Refusal("it is not there")
    texts = [found, found] if isinstance(found, str) else [as_text(found["schema"]), as_text(found["found"])]
    names = ["schema-00000000.json", f"found-{'0' * 40}.json"]
    for name, text in zip(names, texts, strict=True):
        (_directory / "_schemas" / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    read = StoredSchema(Evolution(location=str(_directory))).current(stores=False)
    if read is None or (told is not ANY and read.names != ["id", "v", "d", "at", "s", "m", "more"]):
        raise Wrong(f"{read}")


def _mutate_schema(chance: random.Random, found: Any, other: Any) -> Any:
    if chance.random() < 0.3:
        return mutated_text(chance, json.dumps(found["schema"]), json.dumps(found["found"]))
    return mutated_json(chance, found, other)


def _close() -> None:
    if _directory is not None:
        shutil.rmtree(_directory, ignore_errors=True)


KINDS = [
    Kind("options", _valid, _judge, _mutate),
    Kind("stored schemas", _schema, _judge_schema, _mutate_schema, close=_close),
]

"""Flink's connectors in a script: their options, and the options here that they stand for (pure).

Source: Flink's "Table & SQL Connectors"; Flink CDC's "MySQL CDC Connector", "Connector Options".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from backlog_spark.common.familiar_names import choice, nearest
from backlog_spark.pipelines.script.tokens import Refused
from backlog_spark.pipelines.sections import SINKS, keys_of
from backlog_spark.spi.registry import documented_options

__all__ = [
    "CONNECTORS",
    "LEGACY",
    "LOOKUP_RELOAD",
    "TARGETS",
    "Connector",
    "FlinkOption",
    "Given",
    "connector_of",
    "translated",
]


@dataclass(frozen=True)
class Given:
    """An option of a table as the script has it.

    Parameters
    ----------
    name : str
        Flink's, without quotes.
    value : str
        It may be secret.
    start : int
        Where the name is in the script.
    """

    name: str
    value: str
    start: int

    def __repr__(self) -> str:
        return f"Given({self.name})"


@dataclass(frozen=True)
class FlinkOption:
    """An option of a connector.

    Parameters
    ----------
    name : str
        In Flink. ``*`` at the end stands for any text.
    ours : str
        The option here; "" if it has no effect here.
    values : mapping of str to str, optional
        Flink's values, and the value here. "" leaves the option out. Other values are refused. None: the same values.
    required : bool
    """

    name: str
    ours: str = ""
    values: Mapping[str, str] | None = None
    required: bool = False


@dataclass(frozen=True)
class Connector:
    """A connector of Flink.

    Parameters
    ----------
    type : str
        The type of the source or sink here.
    options : tuple of FlinkOption
    always : mapping of str to str
        Options here that a table has if it does not set them.
    reads : bool
        Whether its tables are read. Otherwise they are written.
    needs_key : bool
        Whether its tables need a primary key.
    """

    type: str
    options: tuple[FlinkOption, ...]
    always: Mapping[str, str]
    reads: bool = True
    needs_key: bool = False

    def known(self) -> dict[str, FlinkOption]:
        """The options by name. Those of mysql_cdc are in its own table, with Flink's names."""
        more = _mysql() if self.type == "mysql_cdc" else ()
        return {option.name: option for option in (*self.options, *more)}


_O = FlinkOption
_ON_ERROR: Final = {"true": "DROPMALFORMED", "false": "FAILFAST"}
_FORMAT_OPTIONS: Final = (
    _O("json.ignore-parse-errors", "mode", _ON_ERROR),
    _O("json.fail-on-missing-field", "", {"false": ""}),
    _O("json.timestamp-format.standard", "", {"SQL": "", "ISO-8601": ""}),
    _O("csv.ignore-parse-errors", "mode", _ON_ERROR),
    _O("csv.field-delimiter", "sep"),
    _O("csv.quote-character", "quote"),
    _O("csv.escape-character", "escape"),
    _O("csv.null-literal", "nullValue"),
)
_MODES: Final = {"initial": "initial", "earliest-offset": "earliest", "latest-offset": "latest",
                 "specific-offset": "specific", "timestamp": "timestamp", "snapshot": "snapshot"}  # fmt: skip
# Options of mysql_cdc that need more than another name.
_OF_MYSQL: Final = {
    "hostname": _O("hostname", "host", required=True),
    "username": _O("username", "user", required=True),
    "database-name": _O("database-name", "table", required=True),
    "table-name": _O("table-name", "table", required=True),
    "scan.startup.mode": _O("scan.startup.mode", "startup.mode", _MODES),
}


def _mysql() -> Iterator[FlinkOption]:
    for option in documented_options("mysql_cdc"):
        yield from (_O(name, option.name) for name in filter(None, option.flink.split(", ")) if name not in _OF_MYSQL)
    yield from _OF_MYSQL.values()
    yield _O("scan.incremental.snapshot.enabled", "", {"true": ""})
    for name in ("server-time-zone", "scan.snapshot.fetch.size", "connection.pool.size"):
        yield _O(name)


_SINK_PARALLELISM: Final = _O("sink.parallelism")

LOOKUP_RELOAD: Final = "lookup.full-cache.periodic-reload.interval"

_MONITOR: Final = "source.monitor-interval"

LEGACY: Final = {"connector.type": "connector", "connector.path": "path", "format.type": "format"}
"""Names of options before Flink 1.11, and their later names."""

CONNECTORS: Final[Mapping[str, Connector]] = {
    "kafka": Connector(
        "hybrid",
        (
            _O("topic", "subscribe"),
            _O("topic-pattern", "subscribePattern"),
            _O("properties.bootstrap.servers", "kafka.bootstrap.servers", required=True),
            _O("properties.group.id"),
            _O("properties.*", "kafka.*"),
            _O("format", "valueFormat", {"json": "json", "csv": "csv", "avro": "avro", "avro-confluent": "avro"}),
            _O("key.format", "keyFormat",
               {"json": "json", "avro": "avro", "avro-confluent": "avro", "raw": "string"}),
            _O("key.fields", "keyFields"),
            _O("key.fields-prefix", "keyFieldsPrefix"),
            _O("key.avro-confluent.url", "schema.registry.url"),
            _O("value.fields-include", "", {"ALL": "", "EXCEPT_KEY": ""}),
            _O("scan.startup.mode", "startingOffsets",
               {"earliest-offset": "earliest", "latest-offset": "latest", "timestamp": ""}, required=True),
            _O("scan.startup.timestamp-millis", "startingTimestamp"),
            _O("scan.bounded.mode", "endingOffsets", {"unbounded": "", "latest-offset": "latest", "timestamp": ""}),
            _O("scan.bounded.timestamp-millis", "endingTimestamp"),
            _O("scan.topic-partition-discovery.interval"),
            _O("sink.*"),
            *_FORMAT_OPTIONS,
            _O("avro-confluent.url", "schema.registry.url"),
            _O("avro-confluent.basic-auth.user-info", "schema.registry.basic.auth.user.info"),
        ),
        {"phases": "kafka"},
    ),
    "mysql-cdc": Connector("mysql_cdc", (), {}),
    "filesystem": Connector(
        "hybrid",
        (
            _O("path", "path", required=True),
            _O("format", "fileFormat", {"json": "json", "csv": "csv", "parquet": "parquet", "orc": "orc"},
               required=True),
            _O(LOOKUP_RELOAD, "refresh"),
            _O("lookup.cache", "", {"FULL": ""}),
            _O(_MONITOR, "discoveryInterval"),
            _O("sink.*"),
            *_FORMAT_OPTIONS,
        ),
        {"phases": "files"},
    ),
    "datagen": Connector(
        "datagen",
        (
            _O("rows-per-second", "rowsPerSecond"),
            _O("number-of-rows", "numberOfRows"),
            _O("fields.*"),
            _O("scan.parallelism"),
        ),
        {},
    ),
    "print": Connector(
        "print",
        (_O("print-identifier", "identifier"), _O("standard-error", "standardError"), _SINK_PARALLELISM),
        {},
        reads=False,
    ),
    "blackhole": Connector("blackhole", (_SINK_PARALLELISM,), {}, reads=False),
    "delta": Connector(
        "delta_append", (_O("table-path", "path", required=True), _O("delta.*", "properties"), _SINK_PARALLELISM), {},
        reads=False,
    ),
}  # fmt: skip
"""By Flink's name: of tables that are read, and of those that are only written."""

_OF_TOPICS: Final = (
    _O("topic", "topic", required=True),
    _O("properties.bootstrap.servers", "options.kafka.bootstrap.servers", required=True),
    _O("properties.group.id"),
    _O("properties.*", "options.kafka.*"),
    _O("format", "format", {"json": "json", "debezium-json": "debezium", "avro-confluent": "avro"}, required=True),
    _O("key.format", "", {"json": "", "avro-confluent": ""}),
    _O("value.fields-include", "", {"ALL": ""}),
    _O("sink.delivery-guarantee", "delivery", {"exactly-once": "exactly_once", "at-least-once": "at_least_once"}),
    _O("json.timestamp-format.standard", "", {"ISO-8601": ""}),
    _O("avro-confluent.url", "options.schema.registry.url"),
    _O("avro-confluent.basic-auth.user-info", "options.schema.registry.basic.auth.user.info"),
    _O("sink.*"),
    _O("scan.*"),
)

TARGETS: Final[Mapping[str, Connector]] = {
    "kafka": Connector("kafka", _OF_TOPICS, {}, reads=False),
    "upsert-kafka": Connector("kafka", _OF_TOPICS, {}, reads=False, needs_key=True),
    "filesystem": Connector(
        "files",
        (
            _O("path", "path", required=True),
            _O("format", "format", {form: form for form in ("parquet", "csv", "json", "orc", "avro")}, required=True),
            _O("csv.field-delimiter", "options.sep"),
            _O("csv.quote-character", "options.quote"),
            _O("csv.escape-character", "options.escape"),
            _O("csv.null-literal", "options.nullValue"),
            _O("parquet.compression", "options.compression"),
            # A batch has files of its own, and they are visible when Spark's log names them.
            _O("sink.*"),
            _O("partition.*"),
        ),
        {},
        reads=False,
    ),
    "jdbc": Connector(
        "jdbc_upsert",
        (
            _O("url", "url", required=True),
            _O("table-name", "table", required=True),
            _O("username", "user", required=True),
            _O("password", "password"),
            _O("driver"),
            _O("connection.max-retry-timeout"),
            _O("sink.*"),
            _O("scan.*"),
            _O("lookup.*"),
        ),
        {},
        reads=False,
        needs_key=True,
    ),
}  # fmt: skip
"""By Flink's name: of tables that an INSERT writes. `CONNECTORS` has the others."""

_ALL: Final = tuple(dict.fromkeys([*CONNECTORS, *TARGETS]))

# Options that follow from the declaration, or that a query sets.
_DECLARED: Final = frozenset(
    {"phases", "schema", "metadatacolumns", "interval", "intervalduringbacklog", "querytoken", "signalstoken",
     "fillscolumns", "pollwait", "availablenowtarget", "metadatalocation", "name", "from", "checkpoint", "sideoutputs",
     "type", "keys", "key", "partitionby", "properties", "changetype", "sequence", "storageoptions",
     "options", "table"}
)  # fmt: skip
_FAMILIES: Final = {"hybrid": ("kafka.", "fs.")}
# Flink's defaults of formats, where Spark has others.
_OF_FORMAT: Final = {"json": {"mode": "FAILFAST"}, "csv": {"mode": "FAILFAST", "escape": ""}}
_PLAIN_NAME: Final = re.compile(r"[\w$-]+")


def connector_of(given: Mapping[str, Given], table: str, start: int, *, is_target: bool) -> Connector:
    """The connector that a table's options name. ``is_target``: whether an INSERT writes the table.

    Raises
    ------
    Refused
        There is none, or no such one.
    """
    named = given.get("connector")
    if named is None:
        raise Refused(start, f"The table {table} has no 'connector'.", f"There are {', '.join(_ALL)}.")
    first, second = (TARGETS, CONNECTORS) if is_target else (CONNECTORS, TARGETS)
    found = first.get(named.value) or second.get(named.value)
    if found is None:
        raise Refused(
            named.start, f"{named.value}: there is no such connector.", choice(named.value, _ALL, "There are")
        )
    return found


def _own_names(connector: Connector) -> dict[str, str]:
    """Options of the source or sink itself, which a table may have too: by small letters."""
    if connector.reads:
        names = [option.name for option in documented_options(connector.type)]
    else:
        names = keys_of(SINKS["delta_upsert" if connector.type == "delta_append" else connector.type])
    return {name.lower(): name for name in names if name.lower() not in _DECLARED and "*" not in name}


def translated(
    name: str, connector: Connector, given: Mapping[str, Given], start: int, faults: list[Refused]
) -> dict[str, Given]:
    """A table's options under the names here. Mistakes are added to ``faults``.

    Parameters
    ----------
    name : str
        The connector's, in Flink.
    start : int
        Where the table's name is, for options that it lacks.
    """
    own = _own_names(connector)
    known = connector.known()
    found: dict[str, Given] = {}
    for each in given.values():
        flink = (
            each.name.removeprefix("value.")
            if name in ("kafka", "upsert-kafka") and each.name != "value.fields-include"
            else each.name
        )
        family = next((n for n in known if n.endswith("*") and flink.startswith(n[:-1])), "")
        option = known.get(flink) or known.get(family)
        if each.name == "connector":
            continue
        if option is None and each.name.lower() in own:
            option = FlinkOption(each.name, own[each.name.lower()])
        if option is None and each.name.startswith(_FAMILIES.get(connector.type, ("\0",))):
            option = FlinkOption(each.name, each.name)
        if option is None:
            names = [n for n in known if "*" not in n]
            near = nearest(each.name, names) or nearest(each.name, own.values())
            hint = f"Did you mean {near}?" if near else f"There are {', '.join(names)}."
            faults.append(Refused(each.start, f"{each.name}: {name} has no such option.", hint))
            continue
        value = each.value
        if option.values is not None:
            if value not in option.values:
                hint = _INSTEAD.get(value) or f"There are {', '.join(option.values)}."
                faults.append(Refused(each.start, f"{each.name}: {value!r} is not possible here.", hint))
                continue
            value = option.values[value]
        ours = option.ours.replace("*", flink[len(option.name) - 1 :])
        if ours and (value or option.values is None) and (ours != "properties" or connector.reads):
            if ours in found and ours != "table" and (ours != "schema.registry.url" or found[ours].value != value):
                faults.append(
                    Refused(each.start, f"{each.name}: {found[ours].name} says the same.", "Write one of them.")
                )
            found[ours] = Given(each.name, value, each.start)
    missing = [o.name for o in known.values() if o.required and not {o.name, f"value.{o.name}"} & given.keys()]
    missing = [n for n in missing if known[n].ours not in found or known[n].ours == "table"]
    is_read_topic = name == "kafka" and connector.reads
    include = given.get("value.fields-include")
    if is_read_topic and (include is None or include.value == "ALL"):  # the value has all columns
        of_key = ("key.format", "key.fields")
        found = {ours: value for ours, value in found.items() if not value.name.startswith(of_key)}
    if is_read_topic and not {"subscribe", "subscribePattern"} & found.keys():
        missing.append("topic")
    if is_read_topic and "valueFormat" not in found and not {"format", "value.format"} & given.keys():
        missing.append("format")
    for each_name in missing:
        hint = _NEEDED.get(each_name, f"Write '{each_name}' = '…'.")
        faults.append(Refused(start, f"The option {each_name} of {name} is missing.", hint))
    if name == "mysql-cdc" and not {"database-name", "table-name"} - given.keys():
        _table(given, found)
    if (monitor := given.get(_MONITOR)) and connector.reads:
        found.setdefault("discovery", Given(monitor.name, "continuous", monitor.start))
    form = found.get("valueFormat") or found.get("fileFormat")
    for ours, value in {**connector.always, **_OF_FORMAT.get(form.value if form else "", {})}.items():
        found.setdefault(ours, Given("connector", value, start))
    return found


_INSTEAD: Final = {
    "group-offsets": "The query's checkpoint has the positions: write earliest-offset, latest-offset or timestamp.",
    "specific-offsets": "Write timestamp, with 'scan.startup.timestamp-millis'.",
    "debezium-json": "Read the database itself, with 'connector' = 'mysql-cdc'.",
}
_NEEDED: Final = {
    "scan.startup.mode": (
        "Write earliest-offset, latest-offset or timestamp. Flink's default, group-offsets, is not possible: the "
        "query's checkpoint has the positions."
    ),
}


def _table(given: Mapping[str, Given], found: dict[str, Given]) -> None:
    """The captured tables: one, or those that Flink's regular expressions match."""
    database, table = given["database-name"], given["table-name"]
    found.pop("table", None)
    is_one = _PLAIN_NAME.fullmatch(database.value) and _PLAIN_NAME.fullmatch(table.value)
    separator = "." if is_one else r"\."
    text = f"{database.value}{separator}{table.value}"
    found["table" if is_one else "tablePattern"] = Given(table.name, text, table.start)

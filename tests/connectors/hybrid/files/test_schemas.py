"""Columns of files without a declared schema: inferred, stored, hinted, extended; and what does not fit them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.decode.json_decoder import JsonDecoder
from backlog_spark.connectors.hybrid.decode.json_scan import scan
from backlog_spark.connectors.hybrid.evolution import Evolution
from backlog_spark.connectors.hybrid.examination import examine
from backlog_spark.connectors.hybrid.files.schemas.fields import added, missing, names_of
from backlog_spark.connectors.hybrid.files.schemas.hints import Unfit, hinted, parse_hints
from backlog_spark.connectors.hybrid.files.schemas.records import json_type
from backlog_spark.connectors.hybrid.files.schemas.stored import StoredSchema
from backlog_spark.connectors.hybrid.files.schemas.types import complete, of_csv, of_files, of_json
from backlog_spark.connectors.hybrid.kafka.arrow import Shape
from backlog_spark.connectors.hybrid.kafka.confluent import Records
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns
from backlog_spark.connectors.hybrid.source import check_options, make_phases
from backlog_spark.errors import BacklogError, SettingError

from .reading import rows_of
from .schemas import Landing

TYPED = ("parquet", "orc", "avro")
MODES = ("addNewColumns", "rescue", "failOnNewColumns", "none")


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# -- inference ---------------------------------------------------------------------------------------------------


def test_json_without_types_is_text(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add('{"b": 1.50, "a": {"x": 1}}\n{"b": "t", "c": [1,  2]}\n')
    assert landing.schema() == "a:string,b:string,c:string,_rescued_data:string"
    assert landing.rows() == [
        {"a": '{"x": 1}', "b": "1.50", "c": None, "_rescued_data": None},
        {"a": None, "b": "t", "c": "[1,  2]", "_rescued_data": None},
    ]


def test_json_with_types(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", inferColumnTypes="true", schemaEvolutionMode="none")
    landing.add(lines({"b": 1, "a": {"x": 1}, "n": None, "e": {}}, {"b": 1.5, "c": [{"y": "t"}, {"z": True}]}))
    assert landing.schema() == "a:struct<x:bigint>,b:double,c:array<struct<y:string,z:boolean>>,n:string"


@pytest.mark.parametrize("multi_line", ["false", "true"])
def test_json_documents(tmp_path: Path, multi_line: str) -> None:
    landing = Landing(tmp_path, "json", inferColumnTypes="true", multiLine=multi_line)
    landing.add('{"a": 1}')
    landing.add('{"b": "t"}')
    assert landing.schema() == "a:bigint,b:string,_rescued_data:string"
    landing.add('[{"a": 2},\n {"a": 3, "B": 1}]' if multi_line == "true" else '{"a": 2}\n{"a": 3, "B": 1}')
    assert [(row["a"], row["_rescued_data"]) for row in landing.rows()[2:]] == [(2, None), (3, {"B": 1})]


def test_csv_takes_the_names_of_all_headers(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "csv", header="true", inferColumnTypes="true", sep=";")
    landing.add("a;at\n1;2024-01-02\n;\n")
    landing.add("at; b ;\n2024-01-02 10:00:00;x;1\n")
    assert landing.schema() == "a:int,at:timestamp,b:string,_c2:int,_rescued_data:string"
    assert [row["b"] for row in landing.rows()] == [None, None, "x"]


def test_csv_without_a_header(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "csv", header="false")
    landing.add("1,2\n3\n")
    assert landing.schema() == "_c0:string,_c1:string,_rescued_data:string"
    assert [list(row.values()) for row in landing.rows()] == [["1", "2", None], ["3", None, None]]


@pytest.mark.parametrize("form", TYPED)
def test_typed_files_give_the_widest_type(tmp_path: Path, form: str) -> None:
    landing = Landing(tmp_path, form, schemaEvolutionMode="rescue")
    landing.add(pa.table({"a": pa.array([1], pa.int32()), "s": [{"x": 1}]}))
    landing.add(pa.table({"a": pa.array([2**40]), "b": ["t"], "s": pa.array([{"y": 1.5}])}))
    assert landing.schema() == "a:bigint,s:struct<x:bigint,y:double>,b:string,_rescued_data:string"
    assert [list(row.values()) for row in landing.rows()] == [
        [1, {"x": 1, "y": None}, None, None],
        [2**40, {"x": None, "y": 1.5}, "t", None],
    ]


def test_types_that_no_type_fits_need_a_hint(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "parquet", schemaLocation=str(tmp_path / "s"))
    one, other = landing.add(pa.table({"a": ["t"]})), landing.add(pa.table({"a": [1]}))
    with pytest.raises(SettingError, match=rf"a is string in {one} and bigint in {other}.*schemaHints=\"a STRING\""):
        landing.schema()
    assert not (tmp_path / "s").exists()
    assert landing.schema(schemaHints="a STRING") == "a:string,_rescued_data:string"
    assert [list(row.values()) for row in landing.rows(schemaHints="a STRING")] == [["t", None], [None, {"a": 1}]]


def test_directories_are_columns_in_all_modes(tmp_path: Path) -> None:
    for form, options, kind in (("json", {}, "string"), ("json", {"inferColumnTypes": "true"}, "int")):
        root = tmp_path / kind
        root.mkdir()
        landing = Landing(root, form, **options)
        landing.add(lines({"a": "t"}), "n=1/d=x")
        assert landing.schema() == f"a:string,n:{kind},d:string,_rescued_data:string"
        landing.add(lines({"a": "u"}), "n=2/d=y/later=z")  # is ignored, as by Auto Loader
        assert [(row["a"], str(row["n"]), row["d"]) for row in landing.rows()] == [("t", "1", "x"), ("u", "2", "y")]


def test_only_a_sample_is_read(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", schemaInferenceFiles="3", schemaInferenceBytes="60k")
    for at in range(9):
        landing.add(lines({f"c{at}": 1}, {"x" * 30_000: 1}, {"late": 1}))
    assert re.sub(":string", "", landing.schema()).split(",")[:3] == ["c0", "c4", "c8"]
    assert "late" not in landing.schema()


def test_columns_that_differ_in_case_only(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", inferColumnTypes="true")
    landing.add(lines({"a": 1, "A": 2}))
    assert landing.schema() == "A:bigint,_rescued_data:string"
    assert landing.rows() == [{"A": 2, "_rescued_data": {"a": 1}}]


def test_without_options_typed_files_declare_their_columns_as_ever(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "parquet")
    landing.add(pa.table({"a": [1]}))
    landing.add(pa.table({"b": [1], "a": [2]}))
    assert landing.schema() == "a:bigint"
    assert landing.rows() == [{"a": 1}, {"a": 2}]
    assert not (tmp_path / "meta" / "_schemas").exists()


KINDS = st.recursive(
    st.sampled_from([pa.null(), pa.int32(), pa.int64(), pa.float64(), pa.decimal128(20, 0), pa.string(), pa.bool_()]),
    lambda inner: inner.map(pa.list_) | st.dictionaries(st.sampled_from("abc"), inner).map(
        lambda fields: pa.struct(sorted(fields.items()))
    ),
    max_leaves=5,
)  # fmt: skip


@given(KINDS, KINDS, KINDS)
def test_the_order_of_records_does_not_matter(one: pa.DataType, other: pa.DataType, third: pa.DataType) -> None:
    for merge in (of_json, of_csv):
        if merge is of_json or not any(map(pa.types.is_struct, (one, other, third))):
            assert merge(one, other) == merge(other, one)
    if not any(pa.types.is_decimal(kind) or pa.types.is_nested(kind) for kind in (one, other, third)):
        assert of_json(of_json(one, other), third) == of_json(one, of_json(other, third))
    wider = of_files(one, other)
    assert wider is None or of_files(wider, other) == wider


# -- what is stored ----------------------------------------------------------------------------------------------


def test_a_restart_takes_the_stored_schema(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    first = landing.schema()
    landing.add(lines({"b": 1}))
    assert landing.schema() == first
    assert landing.versions() == ["schema-00000000.json"]
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    assert landing.schema() == first, "files are not looked at"


def test_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    landing.schema()
    stored = tmp_path / "meta/_schemas/schema-00000000.json"
    for text in ("{", "[]", '{"type": "struct"}', '{"type": "struct", "fields": [{"name": "a"}]}'):
        stored.write_text(text)
        with pytest.raises(BacklogError, match=rf"{stored} is damaged.*[Dd]elete it"):
            landing.schema()


def test_a_look_stores_nothing(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    assert not [finding for finding in examine(landing.options).first if finding.severity.name == "ERROR"]
    assert not (tmp_path / "meta").exists()


def test_several_tasks_find_columns(tmp_path: Path) -> None:
    stored = StoredSchema(Evolution(location=str(tmp_path)))
    assert stored.current() is None
    stored.begin(pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]))
    for found in (
        [("b", pa.int32()), ("c", pa.string())],
        [("b", pa.float64())],
        [("s", pa.struct([("y", pa.bool_())]))],
    ):
        stored.propose(pa.schema(found))
        stored.propose(pa.schema(found))  # again, after a failure
    wanted = [("a", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("y", pa.bool_())]))]
    looked = stored.current(stores=False)
    assert looked is not None
    assert len(list((tmp_path / "_schemas").iterdir())) == 4
    assert stored.current() == looked == stored.current()
    assert list(looked)[:2] == [pa.field(*each) for each in wanted]
    assert {field.name: field.type for field in list(looked)[2:]} == {"b": pa.float64(), "c": pa.string()}
    assert sorted(path.name for path in (tmp_path / "_schemas").iterdir()) == [
        "schema-00000000.json", "schema-00000001.json",
    ]  # fmt: skip


# -- hints -------------------------------------------------------------------------------------------------------


def test_hints(tmp_path: Path) -> None:
    hints = "a INT, s.x DECIMAL(10,2), l.element.y DATE, m MAP<STRING, INT>, `new one` TIMESTAMP, n.o.p BOOLEAN"
    landing = Landing(tmp_path, "json", schemaHints=hints)
    landing.add(lines({"A": 1, "s": {"x": 1.5, "k": 2}, "l": [{"y": "2024-01-02"}], "m": {"k": 1}, "z": 1}))
    assert landing.schema() == (
        "A:int,l:array<struct<y:date>>,m:map<string,int>,s:struct<k:string,x:decimal(10,2)>,z:string,"
        "new one:timestamp,n:struct<o:struct<p:boolean>>,_rescued_data:string"
    )
    landing.add(lines({"A": "t", "m": {"k": "t"}, "n": {"o": {"p": True}}}))
    last = landing.rows()[-1]
    assert (last["A"], last["m"], last["n"]) == (None, None, {"o": {"p": True}})
    assert last["_rescued_data"] == {"A": "t", "m": {"k": "t"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "a type is missing before ''"), ("a INT b INT", "',' is missing before 'b INT'"),
        ("a NUMBER", "NUMBER is not a type"), ("a INT,", "a column is missing"), ("a DECIMAL(40,2)", "40"),
        ("a ARRAY<INT", "'>' is missing"), ("a INT, A.b INT", "A.b and a are about the same column"),
        ("a; INT", "character 2"), ("a. INT", "a type is missing"), (", a INT", "a column is missing"),
        ("a STRUCT<>", "a field is missing"), ("a VARCHAR", "'(' is missing"),
    ],
)  # fmt: skip
def test_hints_that_do_not_parse(text: str, problem: str) -> None:
    with pytest.raises(Unfit, match=re.escape(problem)):
        parse_hints(text)
    options = {"phases": "files", "path": "/x", "metadataLocation": "/m", "fileFormat": "json", "schemaHints": text}
    with pytest.raises(SettingError, match=r"schemaHints = .*cannot be parsed.*such as"):
        check_options(options)


def test_hints_against_the_stored_schema_and_the_data(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", inferColumnTypes="true")
    landing.add(lines({"a": 1}))
    with pytest.raises(SettingError, match=r"schemaHints.*a.b is a field of a column that was inferred as bigint"):
        landing.schema(schemaHints="a.b INT")
    landing.schema(schemaHints="a INT")
    landing.schema(schemaHints="a INT")
    with pytest.raises(SettingError, match=r"differs from the stored schema: a int\..*new checkpoint"):
        landing.schema(schemaHints="a STRING")


@given(
    st.lists(
        st.sampled_from(["a INT", "b.c STRING", "d ARRAY<STRUCT<e: INT>>", "f DECIMAL(5)", "g.h.i DATE"]), unique=True
    )
)
def test_hints_add_columns_once(parts: list[str]) -> None:
    hints = parse_hints(", ".join(parts))
    made = hinted(pa.schema([("A", pa.string()), ("b", pa.struct([("c", pa.int64()), ("x", pa.int64())]))]), hints)
    assert hinted(made, hints) == made
    assert {name.casefold() for name in made.names} == {"a", "b"} | {part[0] for part in parts}


# -- new columns -------------------------------------------------------------------------------------------------


def first_and_more(form: str) -> tuple[Any, Any]:
    """A file, and one with a new column and a new field."""
    if form == "csv":
        return "a\n1\n", "b,a\nt,2\n,3\n"
    if form == "json":
        return lines({"a": 1, "s": {"x": 1}}), lines({"a": 2, "b": "t", "s": {"x": 2, "y": 3}}, {"a": 3})
    one = pa.table({"a": [1], "s": [{"x": 1}]})
    return one, pa.table({"b": ["t", None], "a": [2, 3], "s": [{"x": 2, "y": 3}, None]})


@pytest.mark.parametrize("form", [*TYPED, "json", "csv"])
@pytest.mark.parametrize("mode", MODES)
def test_a_new_column(tmp_path: Path, form: str, mode: str) -> None:
    options = {"inferColumnTypes": "true"} if form in ("json", "csv") else {}
    landing = Landing(
        tmp_path, form, schemaEvolutionMode=mode, **options, **({"header": "true"} if form == "csv" else {})
    )
    one, more = first_and_more(form)
    landing.add(one)
    before = landing.schema()
    file = landing.add(more)
    has_fields = form != "csv"
    if mode == "none":
        found = landing.rows()
        assert [row["a"] for row in found] == [1, 2, 3]
        assert not {"b", "_rescued_data"} & found[0].keys()
        return
    if mode == "rescue":
        found = landing.rows()
        assert [row["a"] for row in found] == [1, 2, 3]
        assert [row["_rescued_data"] for row in found] == [
            None,
            {"b": "t"} | ({"s": {"y": 3}} if has_fields else {}),
            None,
        ]
        assert landing.schema() == before
        return
    names = ["b", "s.y"] if has_fields else ["b"]
    if mode == "failOnNewColumns":
        for _ in range(2):
            with pytest.raises(BacklogError, match=rf"{file} has the columns? .* not in the schema.*failOnNewColumns"):
                landing.rows()
        assert landing.schema() == before
        return
    with pytest.raises(BacklogError) as caught:
        landing.rows()
    shown = re.search(r"has the columns? (.*) not in the schema\. The new schema is stored\. Start", str(caught.value))
    assert shown is not None
    assert sorted(shown[1].split(", ")) == names
    found = landing.rows()
    assert [(row["a"], row["b"], row["_rescued_data"]) for row in found] == [
        (1, None, None), (2, "t", None), (3, None, None),
    ]  # fmt: skip
    if has_fields:
        assert [row["s"] for row in found] == [{"x": 1, "y": None}, {"x": 2, "y": 3}, None]
    assert list(found[0])[-1] == "_rescued_data"
    assert landing.versions() == ["schema-00000000.json", "schema-00000001.json"]


def test_a_new_column_is_text_without_types(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    landing.schema()
    landing.add(lines({"a": 1, "b": {"x": 1}, "n": None, "A": 3}))
    with pytest.raises(BacklogError, match="the column b not in the schema"):
        landing.rows()
    assert landing.rows()[1] == {"a": "1", "b": '{"x": 1}', "_rescued_data": {"A": 3}}


def test_executors_that_do_not_see_the_stored_schema(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    source = landing.source()
    parsed = HybridOptions.parse(landing.options)
    phases = make_phases(parsed)
    schema = source.schema()
    assert isinstance(schema, StructType)
    landing.add(lines({"a": 1, "b": 1}))
    (tmp_path / "meta/_schemas").rename(tmp_path / "elsewhere")
    with pytest.raises(BacklogError, match=r"new columns, b string, and the executors do not see.*schemaLocation"):
        rows_of(phases[0], source.columns_of(schema, parsed, phases))
    assert not (tmp_path / "meta/_schemas").exists()


def test_hundreds_of_levels(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", inferColumnTypes="true", schemaEvolutionMode="rescue")
    landing.add(lines({"a": 1}))
    deep = '{"x":' * 900 + "1" + "}" * 900
    landing.add(f'{{"a": {deep}}}\n{{"b": {deep}}}\n')
    assert landing.schema() == "a:bigint,_rescued_data:string"
    assert [row["_rescued_data"] for row in landing.rows()] == [None, {"a": deep}, {"b": deep}]


def test_a_malformed_record_is_no_column(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}))
    landing.add("{broken\n")
    assert landing.rows()[1] == {"a": None, "_rescued_data": {"_corrupt_record": "{broken"}}


# -- what does not fit -------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([1.5, "t", "", 'ä"']),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "A", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["a", "A", "b", "c"]), VALUES, max_size=3), min_size=1, max_size=6)


class Misfit(Exception):
    pass


def expected(value: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """The value of a column, and what is rescued; a second implementation, of values of Python's json."""
    if value is None:
        return None, None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise Misfit
        own = {field.name: field.type for field in kind}
        column, rest = dict.fromkeys(own), {}
        for name, item in value.items():
            if name not in own:
                rest |= {} if item is None else {name: item}
                continue
            try:
                column[name], left = expected(item, own[name])
            except Misfit:
                left = item
            rest |= {} if left is None else {name: left}
        return column, rest or None
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise Misfit
        made = [expected(item, kind.value_type) for item in value]
        return [column for column, _ in made], value if any(left is not None for _, left in made) else None
    if pa.types.is_string(kind):
        return (value if isinstance(value, str) else json.dumps(value)), None
    fits = {"bool": bool, "int64": int, "double": int | float}[str(kind)]
    if not isinstance(value, fits) or (isinstance(value, bool) and str(kind) != "bool"):
        raise Misfit
    return value, None


def type_of(value: Any) -> pa.DataType:
    tree = scan(json.dumps({"v": value}))
    assert tree is not None
    return complete(json_type(tree.items[0][1])) or pa.int64()


@settings(max_examples=150)
@given(RECORDS, st.data())
def test_no_value_of_json_is_lost(records: list[dict[str, Any]], data: st.DataObject) -> None:
    known = data.draw(st.lists(st.sampled_from(records), max_size=2))
    is_text = data.draw(st.booleans())
    fields = {name: pa.string() if is_text else type_of(value) for record in known for name, value in record.items()}
    fields["id"] = pa.string() if is_text else pa.int64()
    schema = pa.schema([*fields.items(), ("rest", pa.string())])
    made = decoder(parse({"valueFormat": "json"}), schema, "rest")
    assert isinstance(made, JsonDecoder)
    texts = [json.dumps({**record, "id": at}).encode() for at, record in enumerate(records)]
    columns = made.decode(pa.array(texts)).columns
    assert columns == made.exact(texts).columns, "both paths give the same"
    for at, record in enumerate(records):
        *row, rest = (column[at].as_py() for column in columns)
        wanted, left = expected({**record, "id": at}, pa.struct(list(schema)[:-1]))
        assert (dict(zip(schema.names, row, strict=False)), rest and json.loads(rest)) == (wanted, left)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(*(st.sampled_from(["", "1", "x", '"q,"', "2024-01-01"]) for _ in range(3))), min_size=1),
    st.permutations(["a", "A", "b", "c"]),
)
def test_no_field_of_csv_is_lost(rows: list[tuple[str, ...]], header: list[str]) -> None:
    with TemporaryDirectory() as root:
        hints = "a INT, b DATE"
        landing = Landing(Path(root), "csv", header="true", schemaEvolutionMode="rescue", schemaHints=hints)
        landing.add("a\n")
        landing.schema()
        landing.add("\n".join([",".join(header[:3]), *(f"{','.join(row)},more" for row in rows)]) + "\n")
        found = landing.rows()
    for row, made in zip(rows, found, strict=True):
        rescued = made["_rescued_data"] or {}
        assert rescued.pop("_c3") == "more"
        for name, text in zip(header, row, strict=False):
            value = text.strip('"')
            if value and made.get(name) is not None:
                assert str(made[name]) == value
            else:
                assert rescued.pop(name, "") == value
        assert not rescued


@pytest.mark.parametrize("form", TYPED)
def test_values_of_typed_files_that_do_not_fit(tmp_path: Path, form: str) -> None:
    landing = Landing(tmp_path, form, schemaEvolutionMode="rescue")
    landing.add(pa.table({"a": pa.array([1], pa.int32()), "s": [{"x": 1}], "t": ["t"]}))
    landing.schema()
    landing.add(pa.table({"a": [1, 2**40, None], "s": ["u", None, "v"], "T": ["k", None, None]}))
    assert [list(row.values()) for row in landing.rows()[1:]] == [
        [1, None, None, {"s": "u", "T": "k"}], [None, None, None, {"a": 2**40}], [None, None, None, {"s": "v"}],
    ]  # fmt: skip


@pytest.mark.parametrize("form", TYPED)
def test_fields_of_typed_files_that_do_not_fit(tmp_path: Path, form: str) -> None:
    landing = Landing(tmp_path, form, schemaEvolutionMode="rescue")
    landing.add(pa.table({"s": pa.array([{"x": 1}], pa.struct([("x", pa.int32())]))}))
    landing.schema()
    landing.add(pa.table({"s": [{"x": 1, "y": None}, {"x": 2, "y": "t"}, {"x": 2**40, "y": "u"}, None, {"x": None}]}))
    assert [list(row.values()) for row in landing.rows()[1:]] == [
        [{"x": 1}, None], [{"x": 2}, {"s": {"x": 2, "y": "t"}}], [None, {"s": {"x": 2**40, "y": "u"}}], [None, None],
        [{"x": None}, None],
    ]  # fmt: skip


@pytest.mark.parametrize("form", TYPED)
def test_columns_that_a_query_does_not_read(tmp_path: Path, form: str) -> None:
    landing = Landing(tmp_path, form, schemaEvolutionMode="rescue")
    landing.add(pa.table({"a": [1], "b": ["t"]}))
    before = landing.schema()
    landing.add(pa.table({"a": [2], "b": [3], "c": [4]}))
    assert [row["a"] for row in landing.rows(needs=["a"])] == [1, 2]
    rows = landing.rows(needs=["a", "_rescued_data"])
    assert [(row["a"], row["_rescued_data"]) for row in rows] == [(1, None), (2, {"b": 3, "c": 4})]
    assert landing.schema() == before
    with pytest.raises(BacklogError, match="the column c not in the schema"):
        landing.rows(needs=["a"], schemaEvolutionMode="addNewColumns")


def test_records_of_kafka_rescue_nothing() -> None:
    columns = Columns(
        pa.schema([("a", pa.int64())]), ("_rescued_data", "_offset"), evolution=Evolution("_rescued_data")
    )
    shape = Shape(columns, decoder(parse({"valueFormat": "json"}), columns.data))
    record = Mock(**{"value.return_value": b'{"a": 1, "b": 2}', "offset.return_value": 7})
    assert shape.rows(Records([record]), ("topic", 0))[0].to_pylist() == [{"a": 1, "_rescued_data": None, "_offset": 7}]


def test_a_declared_schema_can_rescue(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", schemaEvolutionMode="rescue", rescuedDataColumn="rest", schema="a INT")
    landing.add(lines({"a": "t", "b": 1}))
    assert landing.source().schema() == "a INT, `rest` string"


# -- wrong options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "options", "problem"),
    [
        ("json", {"schemaEvolutionMode": "addColumns"}, "schemaEvolutionMode = 'addColumns': is none of addNew"),
        ("text", {"schemaHints": "a INT"}, "schemaHints = 'a INT': has no meaning with fileFormat=text"),
        ("parquet", {"inferColumnTypes": "true"}, "inferColumnTypes = 'true': has no meaning with fileFormat=parquet"),
        ("json", {"schemaInferenceFiles": "0"}, "schemaInferenceFiles = '0'"),
        ("json", {"schemaInferenceBytes": "many"}, "schemaInferenceBytes = 'many'"),
        ("json", {"schemaEvolutionMode": "rescue", "rescuedDataColumn": " "}, "rescuedDataColumn = ' ': is empty"),
        ("json", {"schemaEvolutionMode": "addNewColumns", "schema": "a INT"}, "is not possible with a declared schema"),
        ("json", {"schemaHints": "a INT", "schema": "a INT"}, "schemaHints = 'a int': counts only for an inferred"),
        ("json", {"inferColumnTypes": "true", "schema": "a INT"}, "inferColumnTypes = 'true': counts only"),
        ("csv", {}, "header = None: is needed to infer"),
        ("json", {"rescuedDataColumn": "a"}, "rescuedDataColumn = 'a': the data also have a column 'a'"),
        ("json", {"metadataColumns": "_file", "rescuedDataColumn": "_file"}, "_file"),
    ],
)  # fmt: skip
def test_wrong_options(tmp_path: Path, form: str, options: dict[str, str], problem: str) -> None:
    landing = Landing(tmp_path, form, **options)
    landing.add(lines({"a": 1}))
    with pytest.raises(SettingError, match=re.escape(problem)):
        landing.schema()


def test_no_file_to_infer_from(tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    with pytest.raises(SettingError, match=r"no file is there.*allowEmpty"):
        landing.schema()
    with pytest.raises(SettingError, match=r"no file is there to infer a schema from.*schemaHints"):
        landing.schema(allowEmpty="true")
    assert landing.schema(allowEmpty="true", schemaHints="a INT") == "a:int,_rescued_data:string"


# -- pure --------------------------------------------------------------------------------------------------------


@given(KINDS, KINDS)
def test_added_fields_are_not_missing(one: pa.DataType, other: pa.DataType) -> None:
    schema, found = pa.schema([("v", one)]), pa.schema([("v", other), ("w", one)])
    new = missing(schema, found)
    assert list(names_of(new, schema))[-1] == "w"
    made = added(schema, new)
    assert not missing(made, found)
    assert added(made, new) == made

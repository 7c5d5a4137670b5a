"""Properties of catalogs: what is refused, and that no text has a secret."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.iceberg.catalogs import CatalogAccess, checked_catalog, shown

SECRETS = {
    "type": "rest",
    "uri": "http://me:hidden-1@127.0.0.1:1/api?key=hidden-2",
    "token": "hidden-3",
    "s3.secret-access-key": "hidden-4",
    "warehouse": "s3://bucket/lake",
}


@pytest.mark.parametrize(
    ("table", "catalog", "message"),
    [
        ("orders", {"warehouse": "/lake"}, r"table = 'orders': is no namespace and table\. Write both"),
        ("shop..orders", {"warehouse": "/lake"}, "is no namespace and table"),
        ("shop.orders", {}, r"catalog = \{\}: names no catalog\. Give a directory"),
        ("shop.orders", {"warehouse": "s3://b/lake"}, "SQLite keeps a catalog on a disk.*Add the catalog's uri"),
    ],
)
def test_refused(table: str, catalog: dict[str, str], message: str) -> None:
    for make in (lambda: bs.IcebergAppend(table, catalog), lambda: bs.IcebergUpsert(table, ["id"], catalog)):
        with pytest.raises(SettingError, match=message):
            make()


def test_a_directory_has_a_catalog_in_sqlite(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for catalog in ({"warehouse": str(lake)}, {"type": "sql", "warehouse": f"file://{lake}"}):
        assert checked_catalog(catalog) == {
            "type": "sql",
            "uri": f"sqlite:///{lake}/catalog.db",
            "warehouse": str(lake),
        }
    assert bs.IcebergAppend("shop.orders", {"warehouse": str(lake)}).described() == {
        "kind": "IcebergAppend",
        "place": f"sqlite:///{lake}/catalog.db/shop.orders",
    }
    assert CatalogAccess(checked_catalog({"warehouse": str(lake)}), "shop.orders").load() is None
    assert (lake / "catalog.db").exists()


def test_no_text_has_a_secret() -> None:
    sink = bs.IcebergUpsert("shop.orders", ["id"], SECRETS)
    assert sink.described()["place"] == "http://127.0.0.1:1/api/s3://bucket/lake/shop.orders"
    with pytest.raises(BacklogError, match=r"catalog of the Iceberg table shop\.orders cannot be used") as caught:
        sink.has_rows_of(None, "app")  # type: ignore[arg-type]
    texts = [repr(sink), str(sink.described()), str(shown(SECRETS)), "".join(traceback.format_exception(caught.value))]
    assert not [text for text in texts if "hidden" in text]
    access = CatalogAccess(checked_catalog(SECRETS), "shop.orders")
    assert access.scrubbed("no hidden-3 at http://me:hidden-1@h/?key=hidden-2") == "no *** at http://h/?***"


def test_another_warehouse_or_name_is_another_place() -> None:
    places = {
        CatalogAccess({"type": "rest", "uri": "http://h", **more}, "s.t").place
        for more in ({"warehouse": "a"}, {"warehouse": "b"}, {"name": "c"}, {})
    }
    assert places == {"http://h/a/s.t", "http://h/b/s.t", "http://h/c/s.t", "http://h/s.t"}


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    access = CatalogAccess(checked_catalog({"warehouse": str(tmp_path / "file" / "lake")}), "shop.orders")
    with pytest.raises(SettingError, match="the directory cannot be made"):
        access.load()

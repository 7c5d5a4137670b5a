"""The sink for tables of MySQL, MariaDB and PostgreSQL."""

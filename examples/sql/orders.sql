-- A table of MySQL as a Delta table, and its totals by customer. Run it with
--   DB_PASSWORD=… backlog-spark sql orders.sql
SET 'execution.checkpointing.dir' = '${LAKE:-/lake}/_checkpoints/orders_sql';
SET 'execution.checkpointing.interval' = '10 s';
SET 'execution.checkpointing.interval-during-backlog' = '10 min';

CREATE TABLE orders (
    id INT,
    customer INT,
    amount INT,
    euros AS CAST(amount AS DECIMAL(12, 2)) / 100,
    PRIMARY KEY (id) NOT ENFORCED
) WITH (
    'connector' = 'mysql-cdc',
    'hostname' = '${DB_HOST:-db}',
    'port' = '${DB_PORT:-3306}',
    'username' = 'reader',
    'password' = '${DB_PASSWORD}',
    'database-name' = 'shop',
    'table-name' = 'orders'
);

CREATE TABLE copy (id INT, customer INT, euros DECIMAL(12, 2), PRIMARY KEY (id) NOT ENFORCED)
WITH ('connector' = 'delta', 'table-path' = '${LAKE:-/lake}/orders_sql');

CREATE TABLE totals (customer INT, n BIGINT, total DECIMAL(22, 2), PRIMARY KEY (customer) NOT ENFORCED)
WITH ('connector' = 'delta', 'table-path' = '${LAKE:-/lake}/totals_sql');

CREATE VIEW large AS SELECT * FROM orders WHERE amount >= 50;

EXECUTE STATEMENT SET BEGIN
INSERT INTO copy SELECT id, customer, euros FROM orders;
INSERT INTO totals SELECT customer, count(*), sum(euros) FROM large GROUP BY customer;
END;

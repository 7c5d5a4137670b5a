-- Persons who open an auction within the ten seconds in which they appear.
SELECT arrived.id, arrived.name, arrived.since
FROM (
  SELECT id, name, window_start AS since, window_end AS until
  FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY id, name, window_start, window_end
) AS arrived
JOIN (
  SELECT seller, window_start AS since, window_end AS until
  FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY seller, window_start, window_end
) AS sold ON arrived.id = sold.seller AND arrived.since = sold.since AND arrived.until = sold.until

SELECT arrived.id, arrived.name, arrived.w.start AS since
FROM (
  SELECT id, name, window(`dateTime`, '10 seconds') AS w
  FROM person
  GROUP BY id, name, window(`dateTime`, '10 seconds')
) AS arrived
JOIN (
  SELECT seller, window(`dateTime`, '10 seconds') AS w
  FROM auction
  GROUP BY seller, window(`dateTime`, '10 seconds')
) AS sold ON arrived.id = sold.seller AND arrived.w = sold.w

-- The average winning price of each category.
SELECT won.category, CAST(avg(won.price) AS BIGINT) AS mean
FROM (
  SELECT a.id, a.category, max(b.price) AS price
  FROM auction AS a
  JOIN bid AS b ON b.auction = a.id
  WHERE b.`dateTime` BETWEEN a.`dateTime` AND a.expires
  GROUP BY a.id, a.category
) AS won
GROUP BY won.category

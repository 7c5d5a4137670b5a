-- Bids and prices of each auction and day.
SELECT auction, date_format(`dateTime`, 'yyyy-MM-dd') AS d,
  count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS bids_1,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_2,
  count(*) FILTER (WHERE price >= 1000000) AS bids_3,
  min(price) AS least, max(price) AS most, CAST(avg(price) AS BIGINT) AS mean, sum(price) AS total
FROM bid
GROUP BY auction, date_format(`dateTime`, 'yyyy-MM-dd')

-- The auctions with the most bids of ten seconds, every two seconds.
WITH bids AS (
  SELECT auction, window_start AS since, window_end AS until, count(*) AS n
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end
)
SELECT bids.auction, bids.n
FROM bids
JOIN (SELECT since, until, max(n) AS most FROM bids GROUP BY since, until) AS top
  ON bids.since = top.since AND bids.until = top.until AND bids.n >= top.most

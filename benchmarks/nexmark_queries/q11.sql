-- The number of bids in each session of a bidder.
SELECT b.bidder, count(*) AS bids,
  SESSION_START(b.`dateTime`, INTERVAL '10' SECOND) AS since, SESSION_END(b.`dateTime`, INTERVAL '10' SECOND) AS until
FROM bid AS b
GROUP BY b.bidder, SESSION(b.`dateTime`, INTERVAL '10' SECOND)

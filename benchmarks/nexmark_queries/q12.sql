-- The number of bids of each bidder in ten seconds of processing time.
WITH stamped AS (SELECT *, PROCTIME() AS seen FROM bid)
SELECT bidder, window_start AS since, window_end AS until, count(*) AS bids
FROM TABLE(TUMBLE(TABLE stamped, DESCRIPTOR(seen), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end

WITH stamped AS (SELECT bidder, window(current_timestamp(), '10 seconds') AS w FROM bid)
SELECT bidder, w.start AS since, w.end AS until, count(*) AS bids
FROM stamped
GROUP BY bidder, w

SELECT b.bidder, count(*) AS bids, session_window.start AS since, session_window.end AS until
FROM bid AS b
GROUP BY b.bidder, session_window(b.`dateTime`, '10 seconds')

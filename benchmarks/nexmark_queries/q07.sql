-- The highest bids of each ten seconds.
SELECT b.auction, b.price, b.bidder, b.`dateTime`, b.extra
FROM bid AS b
JOIN (
  SELECT max(price) AS most, window_end AS until
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS top ON b.price = top.most
WHERE b.`dateTime` BETWEEN top.until - INTERVAL '10' SECOND AND top.until

SELECT b.auction, b.price, b.bidder, b.`dateTime`, b.extra
FROM bid AS b
JOIN (
  SELECT max(price) AS most, window(`dateTime`, '10 seconds').end AS until
  FROM bid
  GROUP BY window(`dateTime`, '10 seconds')
) AS top ON b.price = top.most
WHERE b.`dateTime` BETWEEN top.until - INTERVAL '10' SECOND AND top.until

-- The average price of a seller's last eleven closed auctions.
SELECT won.seller,
  CAST(avg(won.price) OVER (
    PARTITION BY won.seller ORDER BY won.`dateTime` ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
  ) AS BIGINT) AS mean
FROM (
  SELECT a.id, a.seller, b.price, b.`dateTime`,
    ROW_NUMBER() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.`dateTime`) AS place
  FROM auction AS a
  JOIN bid AS b ON a.id = b.auction
  WHERE b.`dateTime` BETWEEN a.`dateTime` AND a.expires
) AS won
WHERE won.place <= 1

-- Bids of some prices, with the time of day and the number of a letter in their text.
SELECT b.auction, b.bidder, 0.908 * b.price AS euros,
  CASE
    WHEN hour(b.`dateTime`) >= 8 AND hour(b.`dateTime`) <= 18 THEN 'day'
    WHEN hour(b.`dateTime`) <= 6 OR hour(b.`dateTime`) >= 20 THEN 'night'
    ELSE 'other'
  END AS part, b.`dateTime`, b.extra, count_char(b.extra, 'c') AS cs
FROM bid AS b
WHERE 0.908 * b.price > 1000000 AND 0.908 * b.price < 50000000

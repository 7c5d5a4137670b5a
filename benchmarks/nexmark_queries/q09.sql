-- The winning bid of each auction.
SELECT id, itemName, description, initialBid, reserve, opened, expires, seller, category, extra,
  auction, bidder, price, bid_at, bid_extra
FROM (
  SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.`dateTime` AS opened, a.expires, a.seller,
    a.category, a.extra, b.auction, b.bidder, b.price, b.`dateTime` AS bid_at, b.extra AS bid_extra,
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`dateTime` ASC) AS place
  FROM auction AS a
  JOIN bid AS b ON b.auction = a.id
  WHERE b.`dateTime` BETWEEN a.`dateTime` AND a.expires
)
WHERE place <= 1

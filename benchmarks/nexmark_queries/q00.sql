-- Bids as they are.
SELECT b.auction, b.bidder, b.price, b.`dateTime`, b.extra
FROM bid AS b

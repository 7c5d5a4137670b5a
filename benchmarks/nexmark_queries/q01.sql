-- Prices in euros.
SELECT b.auction, b.bidder, 0.908 * b.price AS euros, b.`dateTime`, b.extra
FROM bid AS b

-- Bids with a text from a table that does not change.
SELECT b.auction, b.bidder, b.price, b.`dateTime`, s.`value`
FROM (SELECT *, PROCTIME() AS seen FROM bid) AS b
JOIN side FOR SYSTEM_TIME AS OF b.seen AS s ON mod(b.auction, 10000) = s.`key`

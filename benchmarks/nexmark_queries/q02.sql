-- Bids for every 123rd auction.
SELECT b.auction, b.price
FROM bid AS b
WHERE mod(b.auction, 123) = 0

SELECT auction, bidder, won.price, won.channel, won.url, won.`dateTime`, won.extra
FROM (
  SELECT auction, bidder, max_by(struct(price, channel, url, `dateTime`, extra), `dateTime`) AS won
  FROM bid
  GROUP BY auction, bidder
)

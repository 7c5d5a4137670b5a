-- Bids with the day and minute of their folder.
SELECT b.auction, b.bidder, b.price, b.`dateTime`, b.extra,
  date_format(b.`dateTime`, 'yyyy-MM-dd') AS d, date_format(b.`dateTime`, 'HH:mm') AS m
FROM bid AS b

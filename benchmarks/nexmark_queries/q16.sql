-- The same for each channel, with the last minute of a bid.
SELECT channel, date_format(`dateTime`, 'yyyy-MM-dd') AS d,
  max(date_format(`dateTime`, 'HH:mm')) AS m,
  count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS bids_1,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_2,
  count(*) FILTER (WHERE price >= 1000000) AS bids_3,
  count(DISTINCT bidder) AS bidders,
  count(DISTINCT bidder) FILTER (WHERE price < 10000) AS bidders_1,
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS bidders_2,
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS bidders_3,
  count(DISTINCT auction) AS auctions,
  count(DISTINCT auction) FILTER (WHERE price < 10000) AS auctions_1,
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS auctions_2,
  count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS auctions_3
FROM bid
GROUP BY channel, date_format(`dateTime`, 'yyyy-MM-dd')

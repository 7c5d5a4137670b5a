WITH bids AS (
  SELECT auction, window(`dateTime`, '10 seconds', '2 seconds') AS w, count(*) AS n
  FROM bid
  GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
)
SELECT bids.auction, bids.n
FROM bids
JOIN (SELECT w, max(n) AS most FROM bids GROUP BY w) AS top ON bids.w = top.w AND bids.n >= top.most

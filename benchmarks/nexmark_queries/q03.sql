-- Auctions of category 10 by sellers of three states.
SELECT seller.name, seller.city, seller.state, offer.id
FROM auction AS offer
INNER JOIN person AS seller ON seller.id = offer.seller
WHERE offer.category = 10 AND (seller.state = 'OR' OR seller.state = 'ID' OR seller.state = 'CA')

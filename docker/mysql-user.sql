-- The user that the job reads with. docker-compose.yml has its password in .env; change both.
CREATE USER IF NOT EXISTS 'reader'@'%' IDENTIFIED BY 'reads-only';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'reader'@'%';

-- What re-seeding would be without the wait: whoever lost its memory votes at once (models/, h1).
ARGV[6] = '0'
--@include ../../../../src/redlock/seed.lua

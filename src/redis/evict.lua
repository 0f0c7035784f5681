-- Rule: evict: whoever holds the lock cannot renew it any more. It stays taken, by who evicts and with a higher token, for as
-- long as the old holder may still believe in it, which is what was left of his time. A key without an end, or at once: it
-- is free, and the first waiter is told.
-- KEYS lock queue count   ARGV owner(48)+client-ms(13)+about [at once]
-- Returns {milliseconds that it stays taken, value of the old holder}, or 0: it was free.
local L, Q, N = KEYS[1], KEYS[2], KEYS[3]
local C, RUN, CLIENT_MS = string.sub(N, 1, -42), string.sub(N, -40), string.sub(ARGV[1], 49, 61)
--@include issue.lua
--@include tell.lua
local v, left = redis.call('GET', L), redis.call('PTTL', L)
if not v then
  if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then return redis.error_reply('PAWLREPLICA') end
  return 0
end
if ARGV[2] == '1' or left < 0 then
  redis.call('DEL', L)
  local h = redis.pcall('ZRANGE', Q, 0, 0)[1]
  if h then tell(h, 'g') end
  return {0, v}
end
redis.call('SET', L, issue() .. ':' .. ARGV[1], 'PX', math.max(left, 1))
return {left, v}

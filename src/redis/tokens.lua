-- Rule: show where the numbers stand; with advance, since = last = max(last + 2^20, now, to) first (token.h, ADVANCE).
-- KEYS numbers   ARGV run-id client-ms [to]
-- Returns {last, since, stored identity, answering identity, clock in microseconds}.
local C, RUN, CLIENT_MS, TO = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local m, r, t = redis.call('GET', C), redis.call('INFO', 'replication'), redis.call('TIME')
if not string.find(r, 'role:master', 1, true) then return redis.error_reply('PAWLREPLICA') end
local id, offset = string.match(r, 'master_replid2:(%x+).-second_repl_offset:(%-?%d+)')
local last, run, oldid, since, oldoffset = '0', '', '', '0', ''
if m then
  last, run, oldid, since, oldoffset = string.match(m, '^(%d+) (%x+) (%x+) (%d+) (%-?%d+)$')
  if not last then return redis.error_reply('PAWLNUMBERS') end
end
local now = t[1] * 1000000 + t[2]
if TO then
  if math.abs(now / 1000 - CLIENT_MS) > 86400000 then return redis.error_reply('PAWLCLOCK') end
  local n = math.max(last + 1048576, now, tonumber(TO))
  if n >= 9007199254740991 then return redis.error_reply('PAWLEXHAUSTED') end
  last = string.format('%016.0f', n)
  since, run, oldid, oldoffset = last, RUN, id, offset
  redis.call('SET', C, last .. ' ' .. run .. ' ' .. oldid .. ' ' .. since .. ' ' .. oldoffset)
end
local function identity(a, b, c) return string.sub(a, 1, 16) .. ' ' .. string.sub(b, 1, 16) .. ' ' .. c end
return {last, since, m and identity(run, oldid, oldoffset) or '', identity(RUN, id, offset), string.format('%.0f', now)}

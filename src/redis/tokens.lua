-- Rule: show where the numbers stand; with advance, since = last = max(last + 2^20, now, to) first (token.h, ADVANCE).
-- KEYS count   ARGV client-ms [to]          (issue.lua tells what is kept where)
-- Returns {last, since, stored identity, answering identity, clock in microseconds}.
local N, CLIENT_MS, TO = KEYS[1], ARGV[1], ARGV[2]
local C, RUN = string.sub(N, 1, -42), string.sub(N, -40)
local m, r, t = redis.call('GET', C), redis.call('INFO', 'replication'), redis.call('TIME')
if not string.find(r, 'role:master', 1, true) then return redis.error_reply('PAWLREPLICA') end
local id, offset = string.match(r, 'master_replid2:(%x+).-second_repl_offset:(%-?%d+)')
local last, run, oldid, since, oldoffset = '0', '', '', '0', ''
if m then
  run, oldid, since, oldoffset = string.match(m, '^(%x+) (%x+) (%d+) (%-?%d+)$')
  if not run then return redis.error_reply('PAWLNUMBERS') end
  last = redis.call('GET', C .. ':' .. run) or since
end
local now = t[1] * 1000000 + t[2]
if TO then
  if math.abs(now / 1000 - CLIENT_MS) > 86400000 then return redis.error_reply('PAWLCLOCK') end
  local n = math.max(math.max(last, since) + 1048576, now, tonumber(TO))
  if n >= 9007199254740991 then return redis.error_reply('PAWLEXHAUSTED') end
  last = string.format('%016d', n)
  if run ~= '' and run ~= RUN then redis.call('DEL', C .. ':' .. run) end
  since, run, oldid, oldoffset = last, RUN, id, offset
  redis.call('SET', C, run .. ' ' .. oldid .. ' ' .. since .. ' ' .. oldoffset)
  redis.call('SET', N, last)
end
local function identity(a, b, c) return string.sub(a, 1, 16) .. ' ' .. string.sub(b, 1, 16) .. ' ' .. c end
return {last, since, run ~= '' and identity(run, oldid, oldoffset) or '', identity(RUN, id, offset), string.format('%d', now)}

-- Rule: how an instance comes to vote (admit.lua), and how a lost one does so again. First (P) it makes a mark of its own,
-- then a majority of the others takes a new epoch (B) and tells its floors, then (S) it begins above all of them, if the mark
-- is still there: so no late or repeated message brings an old number back (models/, s1, s2c). Whoever prepares meanwhile
-- gets the same mark: it stands for this very loss. Two runs never share an epoch (s2d): it is bumped only where its number
-- is higher. Somebody may hold a lock that this instance has forgotten, so it does not vote yet: the longest ttl that the
-- majority knows has to pass first (h1). It can be asked for its numbers meanwhile.
-- KEYS meta mark   ARGV what epoch client-ms [mark floor ttl]
--   L look   P prepare: the mark, or '' where it votes   B bump   S seed   A advance to floor   T trust: it lost nothing, if it was not promoted
--   F floor of an operator, who knows that no lock of before is held: advance, and vote at once. Only in its own epoch, so a
--     late one does not end the wait after a further loss
-- Returns {done 1 or 0, meta, state as admit.lua or 'V': votes, clock in microseconds, mark}.
local META, MARK, WHAT, NEW = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local function state()
  local EPOCH = ''
  --@include admit.lua
  return 'V'
end
local s = state()
local knows = s == 'V' or string.sub(s, 1, 1) == 'W'
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local function answer(done, mark)
  return {done, redis.call('GET', META) or '', s, string.format('%d', now), mark or ''}
end
local replication = redis.call('INFO', 'replication')
local self = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ' '
  .. string.match(replication, 'master_replid:(%x+)')
-- Whoever was promoted has a second replication id, and may lack what its primary granted last; so has, from 7 on, who came
-- back with an RDB file that was made beside replicas, which may lack something, too. Who read its AOF has none.
local promoted = not string.find(replication, 'master_replid2:0000000000000000000000000000000000000000', 1, true)
local mark = redis.call('GET', MARK)
if mark and string.sub(mark, 1, #self) ~= self then mark = nil end -- of another process: it came back with old data
local M = redis.call('GET', META) or ''
if WHAT == 'P' and not knows then
  mark = mark or self .. ' ' .. string.format('%d', now) .. ' ' .. string.sub(NEW, 18)
  redis.call('SET', MARK, mark, 'PX', 60000)
  return answer(1, mark)
elseif WHAT == 'B' and knows and string.sub(NEW, 1, 16) > string.sub(M, 35, 50) then
  redis.call('SETRANGE', META, 34, NEW)
  return answer(1)
elseif WHAT == 'T' and s == 'R' and not promoted then
  redis.call('SETRANGE', META, 68, self)
  s = state()
  return answer(1)
elseif (WHAT == 'S' and not knows and mark == ARGV[4]) or (WHAT == 'A' and knows)
    or (WHAT == 'F' and knows and string.sub(M, 35, 67) == NEW) then
  if math.abs(now / 1000 - ARGV[3]) > 86400000 then error('PAWLCLOCK') end
  local floor = math.max(tonumber(ARGV[5]), tonumber(string.sub(M, 1, 16)) or 0)
  if floor >= 9007199254740800 then error('PAWLEXHAUSTED') end
  floor = string.format('%016d', floor)
  if WHAT ~= 'S' then
    redis.call('SETRANGE', META, 0, floor .. ' ' .. floor)
    if WHAT == 'F' then redis.call('SETRANGE', META, 199, '0000000000000') end
  else
    local ms, ttl = math.floor(now / 1000), tonumber(ARGV[6])
    redis.call('SET', META, floor .. ' ' .. floor .. ' ' .. NEW .. ' ' .. self .. ' ' .. floor
      .. string.format(' %08d %08d %013d %013d', ttl, 0, ms, ttl > 0 and ms + ttl + 1 or 0))
    redis.call('DEL', MARK)
  end
  s = state()
  return answer(1)
end
return answer(0)

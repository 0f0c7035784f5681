-- Rule: only an instance that kept its memory votes. META is one text of fixed places, one an instance:
--   1 floor(16): no number was ever given here above it, for any name     18 base(16): every number is above it
--   35 epoch(33): number(16) '.' run(16), compared for equality
--   69 run id(40) and 110 replication id(40) of the process that was admitted
--   151 born(16): what lies here with a lower number is from before it lost its memory: nobody's
--   168 ttl(8), 177 and 186 since(13): no lock was asked for with a longer one since then; and in the time before
--   200 ready(13): it does not vote before that time of its own clock; zeros: it votes
-- 'U': never admitted, or emptied. 'R': another process, or promoted since. 'E...': another epoch than the asker's, who may
-- leave it open. 'W...': its memory is new, so that for so many milliseconds somebody may count on a lock that it forgot.
-- The replication id is drawn anew by each process and each promotion, and is the cheapest to ask for. A primary takes
-- another one by itself when it had no replica for an hour; then the run id tells that it is the same process, and a second
-- id of zeros that it was not promoted in that hour. What the asker knows of the process does not count: its question may be
-- a late double of one to another process.
local M, INFO = redis.call('GET', META), redis.call('INFO', 'replication')
if not string.find(INFO, 'role:master', 1, true) then error('PAWLREPLICA') end
if not M then return 'U' end
local F, BASE = tonumber(string.sub(M, 1, 16)), tonumber(string.sub(M, 18, 33))
if not F or not BASE or #M ~= 212 then error('PAWLMETA') end
if not string.find(INFO, 'master_replid:' .. string.sub(M, 110, 149), 1, true) then
  if string.sub(M, 69, 108) ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
      or not string.find(INFO, 'master_replid2:0000000000000000000000000000000000000000', 1, true) then
    return 'R'
  end
  redis.call('SETRANGE', META, 109, string.match(INFO, 'master_replid:(%x+)'))
end
if EPOCH ~= '' and string.sub(M, 35, 67) ~= EPOCH then return 'E' .. string.sub(M, 35, 67) end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if string.sub(M, 200) ~= '0000000000000' then
  local left, most = string.sub(M, 200) - now, math.max(string.sub(M, 168, 175), string.sub(M, 177, 184)) + 1
  if left > most then -- the clock was ahead then, and is put right
    left = most
    redis.call('SETRANGE', META, 199, string.format('%013d', now + left))
  end
  if left > 0 then return 'W' .. string.format('%d', left) end
  redis.call('SETRANGE', META, 199, '0000000000000')
end
local since = now - string.sub(M, 186, 198)
if since > 86400000 or since < -60000 then -- a day, longer than any ttl: what was asked for before the time before is over
  local ttls = string.sub(M, 168, 184)
  if since > 0 then ttls = '00000000 ' .. string.sub(M, 168, 175) end -- else the clock is put right: that is no day
  M = string.sub(M, 1, 167) .. ttls .. ' ' .. string.format('%013d', now) .. string.sub(M, 199)
  redis.call('SETRANGE', META, 167, string.sub(M, 168, 198))
end

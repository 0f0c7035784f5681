-- Rule: only an instance that kept its memory votes. META is one text of fixed places, one an instance:
--   1 floor(16): no number was ever given here above it, for any name     18 base(16): every number is above it
--   35 epoch(33): number(16) '.' run(16), compared for equality           69 run id of the process that was admitted (40)
--   110 its second replication id and offset, as they were then
-- 'U': never admitted, or emptied. 'R': another process, or promoted since. 'E...': another epoch than the asker's.
-- The asker's run id is that of its connection, which no process outlives. A primary drops its second id by itself when it
-- had no replica for an hour: zeros change nothing.
local M, INFO = redis.call('GET', META), redis.call('INFO', 'replication')
if not string.find(INFO, 'role:master', 1, true) then error('PAWLREPLICA') end
if not M then return 'U' end
local F, BASE = tonumber(string.sub(M, 1, 16)), tonumber(string.sub(M, 18, 33))
if not F or not BASE or #M < 112 then error('PAWLNUMBERS') end
if string.sub(M, 69, 108) ~= string.sub(ID, 35) then return 'R' end
if not string.find(INFO, 'master_replid2:0000000000000000000000000000000000000000', 1, true) then
  local id, offset = string.match(INFO, 'master_replid2:(%x+).-second_repl_offset:(%-?%d+)')
  if string.sub(M, 110) ~= id .. ' ' .. offset then return 'R' end
end
if string.sub(M, 35, 67) ~= string.sub(ID, 1, 33) then return 'E' .. string.sub(M, 35, 67) end

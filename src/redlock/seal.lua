-- Rule: SEAL, which is also RENEW: only where the lock is ours and was granted with a number not above m: then no lower
-- counter is left behind, and the lease begins anew. Without `number <= m` two holders can get one token (models/, b3, b4);
-- without the owner, too (b2). Never creates (b8).
-- KEYS meta, lock counter of each   ARGV epoch, v(48) ttl m of each
-- Returns 'S' and one character a lock: 1 sealed, 0 not ours any more; or as admit.lua.
local META, EPOCH = KEYS[1], ARGV[1]
--@include admit.lua
local out = {}
for i = 2, #KEYS, 2 do
  local L, N, a = KEYS[i], KEYS[i + 1], i / 2 * 3 - 1
  local V, TTL, m = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
  local v = redis.pcall('GETRANGE', L, '0', '64')
  if type(v) == 'table' then -- a key of another type is not ours
    if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
    v = ''
  end
  if string.sub(v, 18) == V and tonumber(string.sub(v, 1, 16)) <= m then
    local c = redis.call('GET', N)
    c = c and math.max(tonumber(c), BASE) or F
    if c < m then redis.call('SET', N, string.format('%016d', m), 'PX', 86400000) end
    if m > F then
      F = m + 127
      redis.call('SETRANGE', META, 0, string.format('%016d', F))
    end
    redis.call('PEXPIRE', L, TTL)
    out[#out + 1] = '1'
  else
    out[#out + 1] = '0'
  end
end
return 'S' .. table.concat(out)

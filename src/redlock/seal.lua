-- Rule: SEAL, which is also RENEW: only where the lock is ours and was granted with a number not above m: then no lower
-- counter is left behind, and the lease begins anew. Without `number <= m` two holders can get one token (models/, b3, b4);
-- without the owner, too (b2). Never creates (b8). An attempt is sealed in its epoch (s1b); what was sealed once is renewed in
-- any, since no number is given then, but not where it lies since before a loss of memory (h4).
-- KEYS meta, lock counter of each   ARGV epoch or '', v(48) ttl m of each
-- Returns 'S' and one character a lock: 1 sealed, 0 not ours any more; or as admit.lua.
local META, EPOCH = KEYS[1], ARGV[1]
--@include admit.lua
local out, born, longest = {}, tonumber(string.sub(M, 151, 166)), tonumber(string.sub(M, 168, 175))
for i = 2, #KEYS, 2 do
  local L, N, a = KEYS[i], KEYS[i + 1], i / 2 * 3 - 1
  local V, TTL, m = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
  local v = redis.pcall('GETRANGE', L, '0', '64')
  if type(v) == 'table' then -- a key of another type is not ours
    if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
    v = ''
  end
  local n = string.sub(v, 18) == V and tonumber(string.sub(v, 1, 16))
  if n and n > born and n <= m then
    local c = redis.call('GET', N)
    c = c and math.max(tonumber(c), BASE) or F
    if c < m then redis.call('SET', N, string.format('%016d', m), 'PX', 86400000) end
    if m > F then
      F = m + 127
      redis.call('SETRANGE', META, 0, string.format('%016d', F))
    end
    redis.call('PEXPIRE', L, TTL)
    if tonumber(TTL) > longest then
      longest = tonumber(TTL)
      redis.call('SETRANGE', META, 167, string.format('%08d', longest))
    end
    out[#out + 1] = '1'
  else
    out[#out + 1] = '0'
  end
end
return 'S' .. table.concat(out)

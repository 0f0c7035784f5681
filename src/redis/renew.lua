-- Rule: renew: never creates, and renews only the very same grant (token and owner).
-- KEYS locks   ARGV token:owner and ttl of each
-- Returns one character a lock: 1 renewed, 0 not ours any more. pcall: a key of another type is not ours either, and must
-- not keep the others' answers from us; any other refusal is an error, of which the caller concludes nothing.
local out, lost = {}, false
for i, L in ipairs(KEYS) do
  local v = redis.pcall('GETRANGE', L, '0', '64')
  if v == ARGV[2 * i - 1] then
    local r = redis.pcall('PEXPIRE', L, ARGV[2 * i])
    if type(r) == 'table' then return r end
    out[i] = '1'
  elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
    return v
  else
    out[i], lost = '0', true
  end
end
if lost and not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then return redis.error_reply('PAWLREPLICA') end
return table.concat(out)

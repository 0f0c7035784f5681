-- Rule: what SEAL would say, and nothing is changed.
-- KEYS meta lock   ARGV epoch v(48) m      Returns 'S1' or 'S0', or as admit.lua.
local META, EPOCH = KEYS[1], ARGV[1]
--@include admit.lua
local v = redis.pcall('GETRANGE', KEYS[2], '0', '64')
if type(v) == 'table' then
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  v = ''
end
return string.sub(v, 18) == ARGV[2] and tonumber(string.sub(v, 1, 16)) <= tonumber(ARGV[3]) and 'S1' or 'S0'

-- Rule: what SEAL would say as a renewal, and no lock is changed.
-- KEYS meta lock   ARGV v(48) m      Returns 'S1' or 'S0', or as admit.lua.
local META, EPOCH = KEYS[1], ''
--@include admit.lua
local v = redis.pcall('GETRANGE', KEYS[2], '0', '64')
if type(v) == 'table' then
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  v = ''
end
local n = string.sub(v, 18) == ARGV[1] and tonumber(string.sub(v, 1, 16))
return n and n > tonumber(string.sub(M, 151, 166)) and n <= tonumber(ARGV[2]) and 'S1' or 'S0'

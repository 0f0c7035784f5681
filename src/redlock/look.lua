-- Rule: what there is of each lock: its value, what is left of it, who waits. Nothing is changed.
-- KEYS lock queue, again and again      Returns {value, left, waiters} for each pair
local found = {}
for i = 1, #KEYS, 2 do
  found[#found + 1] = {redis.pcall('GET', KEYS[i]), redis.call('PTTL', KEYS[i]), redis.pcall('ZRANGE', KEYS[i + 1], '0', '-1')}
end
return found

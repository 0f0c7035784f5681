-- Rule: tell the client of the waiter h to ask again (what = 'g'), or to look in some milliseconds ('n <ms>'). Returns how
-- many got it; 0 means that its client is gone; nil, that we may not publish. A member of the queue is the owner value (48
-- characters, of which the first 16 name the client) and what the waiter says of itself.
local CLAIM = 500 -- milliseconds that a waiter has to take what was handed to it
local function tell(h, what)
  local r = redis.pcall('PUBLISH', string.sub(C, 1, -2) .. 'w:' .. string.sub(h, 1, 16), what .. ' ' .. string.sub(h, 1, 48))
  return type(r) == 'number' and r or nil
end

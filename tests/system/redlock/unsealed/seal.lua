-- What the protocol would be without SEAL: a plain maximum over a majority (models/, b1). Says yes and does nothing.
local META, EPOCH = KEYS[1], ARGV[1]
return 'S' .. string.rep('1', (#KEYS - 1) / 2)

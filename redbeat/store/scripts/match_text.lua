-- match_text(text, claimed): tell whether a text is still what the caller has read; not a script of its own, but
-- put in front of the one that needs it.
-- claimed is the text itself, or for a long one '#' and its SHA-1, as sending the text again would take longer.
local function match_text(text, claimed)
  if text == claimed then return true end
  return string.sub(claimed, 1, 1) == '#' and '#' .. redis.sha1hex(text) == claimed
end


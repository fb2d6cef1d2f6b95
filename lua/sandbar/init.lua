-- What `require "sandbar"` finds. From its second line on modules come compiled, out of the C half.
require("sandbar.core").carry(package.preload)
return require "sandbar.api"

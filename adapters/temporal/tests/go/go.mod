module mcpwf

go 1.21

require go.temporal.io/sdk v0.0.0

replace go.temporal.io/sdk => ./sdk

module github.com/golockers/locker/rueidis

go 1.26.0

replace github.com/golockers/locker => ..

require (
	github.com/golockers/locker v0.0.0
	github.com/redis/go-redis/v9 v9.5.5
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.8.4
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

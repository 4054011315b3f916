module github.com/golockers/locker/examples/stampede

go 1.26.0

replace github.com/golockers/locker => ../..

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/golockers/locker v0.0.0
	github.com/ncruces/go-sqlite3 v0.22.0
	github.com/redis/go-redis/v9 v9.5.5
	github.com/stretchr/testify v1.11.1
	github.com/tetratelabs/wazero v1.8.2
	golang.org/x/term v0.47.0
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

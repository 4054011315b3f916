module github.com/golockers/locker/conformance/internal/lincheck

go 1.26.0

replace (
	github.com/golockers/locker => ../../..
	github.com/golockers/locker/rueidis => ../../../rueidis
)

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/bradfitz/gomemcache v0.0.0-20230905024940-24af94b03874
	github.com/golockers/locker v0.0.0
	github.com/golockers/locker/rueidis v0.0.0
	github.com/gomodule/redigo v1.9.2
	github.com/redis/go-redis/v9 v9.5.5
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	golang.org/x/sys v0.47.0 // indirect
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/stretchr/testify v1.9.0
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

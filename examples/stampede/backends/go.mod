module github.com/golockers/locker/examples/stampede/backends

go 1.26.0

replace (
	github.com/golockers/locker => ../../..
	github.com/golockers/locker/etcd => ../../../etcd
	github.com/golockers/locker/examples/stampede => ..
	github.com/golockers/locker/postgres => ../../../postgres
	github.com/golockers/locker/rueidis => ../../../rueidis
)

require (
	github.com/bradfitz/gomemcache v0.0.0-20230905024940-24af94b03874
	github.com/golockers/locker v0.0.0
	github.com/golockers/locker/etcd v0.0.0
	github.com/golockers/locker/examples/stampede v0.0.0
	github.com/golockers/locker/postgres v0.0.0
	github.com/golockers/locker/rueidis v0.0.0
	github.com/gomodule/redigo v1.9.2
	github.com/jackc/pgx/v5 v5.9.2
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
	go.etcd.io/etcd/client/v3 v3.5.13
	go.uber.org/zap v1.17.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/coreos/go-semver v0.3.0 // indirect
	github.com/coreos/go-systemd/v22 v22.3.2 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	github.com/ncruces/go-sqlite3 v0.22.0 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
	github.com/redis/go-redis/v9 v9.5.5 // indirect
	github.com/tetratelabs/wazero v1.8.2 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.etcd.io/etcd/api/v3 v3.5.13 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.5.13 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/multierr v1.6.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto v0.0.0-20230822172742-b8732ec3820d // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20230822172742-b8732ec3820d // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20230822172742-b8732ec3820d // indirect
	google.golang.org/grpc v1.59.0 // indirect
	google.golang.org/protobuf v1.33.0 // indirect
)

module github.com/golockers/locker/sqllock

go 1.26.0

replace github.com/golockers/locker => ..

require github.com/golockers/locker v0.0.0

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/stretchr/testify v1.9.0
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

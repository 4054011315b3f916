module github.com/golockers/locker/sqllock

go 1.26.0

replace github.com/golockers/locker => ..

require github.com/golockers/locker v0.0.0

require github.com/stretchr/testify v1.9.0 // indirect

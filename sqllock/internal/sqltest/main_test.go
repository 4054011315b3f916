package sqltest

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker/internal/leaktest"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // it logs connections that end
	leaktest.Main(m)
}

package lincheck

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // it logs connections that end
	leaktest.Main(m)
}

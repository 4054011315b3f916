package names

import (
	"testing"

	"github.com/golockers/locker/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

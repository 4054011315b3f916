package cache_test

import (
	"testing"

	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

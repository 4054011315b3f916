package table_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/golockers/locker/internal/table"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	var tab table.Table[int, int]
	model := map[int]int{}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, share := range []int{80, 20, 50, 90, 5} { // percent of keys that are set
		for range 5000 {
			k := rng.IntN(2000)
			if rng.IntN(100) < share {
				tab.Set(k, k+1)
				model[k] = k + 1
			} else {
				tab.Delete(k)
				delete(model, k)
			}
			require.Equal(t, len(model), tab.Len())
			v, ok := tab.Get(k)
			want, has := model[k]
			require.Equal(t, has, ok)
			require.Equal(t, want, v)
		}
	}
	for k, v := range model {
		got, _ := tab.Get(k)
		require.Equal(t, v, got)
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	memory := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := memory()
	var tab table.Table[int, [64]byte]
	const peak = 100_000
	for k := range peak {
		tab.Set(k, [64]byte{})
	}
	full := memory() - before
	for k := range peak - 10 {
		tab.Delete(k)
	}
	assert.Less(t, memory()-before, full/50)
	assert.Equal(t, 10, tab.Len())
	runtime.KeepAlive(&tab)
}

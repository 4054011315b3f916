package line_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golockers/locker/internal/line"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type (
	lines = line.Lines[string, int]
	place = line.Place[string, int]
)

func isFirst(p *place) bool {
	select {
	case <-p.Turn():
		return p.Err() == nil
	default:
		return false
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	var l lines
	a, b, c := l.Join("k"), l.Join("k"), l.Join("k")
	other := l.Join("other")
	assert.Equal(t, []bool{true, false, false, true}, []bool{isFirst(a), isFirst(b), isFirst(c), isFirst(other)})
	assert.Equal(t, []bool{true, true, false}, []bool{a.HasNext(), b.HasNext(), c.HasNext()})
	*a.State() = 7
	assert.False(t, a.Leave())
	assert.True(t, isFirst(b))
	assert.False(t, isFirst(c))
	assert.Equal(t, 7, *b.State(), "not handed on")
	assert.False(t, b.Leave())
	assert.False(t, b.Leave(), "a second time")
	assert.True(t, isFirst(c))
	assert.True(t, c.Leave(), "the last one")
	assert.Zero(t, *l.Join("k").State(), "kept beyond the end of the line")
	assert.True(t, other.Leave())
}

// A place that leaves just as it gets its turn has the state to put away.
func TestStateOfTheLast(t *testing.T) {
	var l lines
	a, b := l.Join("k"), l.Join("k")
	*a.State() = 7
	assert.Nil(t, b.State())
	assert.False(t, a.Leave())
	assert.True(t, b.Leave())
	assert.Equal(t, 7, *b.State())
}

func TestBegin(t *testing.T) {
	var l lines
	a := l.Begin("k")
	require.NotNil(t, a)
	assert.True(t, isFirst(a))
	assert.Nil(t, l.Begin("k"))
	b := l.Join("k")
	a.Leave()
	assert.Nil(t, l.Begin("k"), "ahead of b, whose turn it is")
	assert.True(t, isFirst(b))
	assert.True(t, b.Leave())
	assert.Zero(t, l.Waiting())
}

func TestFail(t *testing.T) {
	var l lines
	a, b, c := l.Join("k"), l.Join("k"), l.Join("k")
	failure := errors.New("down")
	require.Panics(t, func() { b.Fail(failure) })
	a.Fail(failure)
	for _, p := range []*place{b, c} {
		<-p.Turn()
		assert.Equal(t, failure, p.Err())
		assert.False(t, p.Leave())
		assert.False(t, p.HasNext())
	}
	assert.Zero(t, l.Waiting())
	d := l.Join("k")
	assert.True(t, isFirst(d), "a failed line was joined")
	assert.True(t, d.Leave())
}

// Whoever leaves and whatever fails, in any order, the turns are those of a plain list.
func FuzzSchedules(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 9, 2, 17, 0, 3})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var l lines
		var model, failed []*place
		failure := errors.New("down")
		for _, step := range steps {
			i := int(step >> 2)
			switch {
			case step&3 < 2 || len(model) == 0:
				model = append(model, l.Join("k"))
			case step&3 == 2:
				i %= len(model)
				p := model[i]
				model = slices.Delete(model, i, i+1)
				require.Equal(t, len(model) == 0, p.Leave())
			default:
				model[0].Fail(failure)
				failed = append(failed, model[1:]...)
				model = nil
			}
			for i, p := range model {
				require.Equal(t, i == 0, isFirst(p))
				require.Equal(t, i < len(model)-1, p.HasNext())
			}
			for _, p := range failed {
				<-p.Turn()
				require.Equal(t, failure, p.Err())
			}
			require.Equal(t, min(len(model), 1), l.Waiting())
		}
	})
}

// Of a line for several permits, each of the first has a State of its own, which goes to whoever has
// the next turn.
func TestSeveralTurns(t *testing.T) {
	var l lines
	var all []*place
	for i := range 5 {
		all = append(all, l.JoinN("k", 2))
		assert.Equal(t, i < 2, isFirst(all[i]))
		if i < 2 {
			*all[i].State() = i + 1
		}
	}
	assert.Nil(t, all[2].State())
	assert.True(t, all[1].HasNext())
	assert.False(t, all[0].Refused())
	all[1].Refuse()
	assert.True(t, all[4].Refused())
	assert.False(t, all[1].Leave())
	assert.True(t, isFirst(all[2]))
	assert.Equal(t, 2, *all[2].State(), "not handed on")
	assert.False(t, all[3].Leave(), "it had no turn")
	assert.False(t, all[0].Leave())
	assert.Equal(t, 1, *all[4].State())
	assert.False(t, all[4].HasNext())
	assert.True(t, all[2].Leave(), "nobody is left who could use it")
	late := l.JoinN("k", 2)
	assert.True(t, isFirst(late))
	assert.Zero(t, *late.State())
	waits := l.JoinN("k", 2)
	failure := errors.New("down")
	late.Fail(failure)
	<-waits.Turn()
	assert.Equal(t, failure, waits.Err())
	assert.False(t, waits.Leave())
	assert.NoError(t, all[4].Err(), "it has asked the backend itself")
	other := l.Join("k")
	assert.True(t, all[4].Leave())
	assert.True(t, other.Leave())
	assert.Zero(t, l.Waiting())
}

// Callers of many goroutines have their turns one at a time, and nothing stays.
func TestOneAtATime(t *testing.T) {
	var l lines
	var busy [3]atomic.Int32
	var turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 0))
			for range 500 {
				k := rng.IntN(len(busy))
				p := l.Join(string(rune('a' + k)))
				if rng.IntN(4) == 0 {
					p.Leave() // perhaps while it becomes the first
					continue
				}
				<-p.Turn()
				if p.Err() != nil {
					continue
				}
				assert.EqualValues(t, 1, busy[k].Add(1))
				*p.State()++
				turns.Add(1)
				busy[k].Add(-1)
				if rng.IntN(16) == 0 {
					p.Fail(errors.New("down"))
				} else {
					p.Leave()
				}
			}
		})
	}
	wg.Wait()
	assert.NotZero(t, turns.Load())
	assert.Zero(t, l.Waiting())
}

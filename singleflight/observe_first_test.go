package singleflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A caller that joins a load, whatever comes of it, gets the context of the one that began it.
func TestObserveFirst(t *testing.T) {
	for _, cause := range []error{nil, errors.New("not found")} {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend()
			p := b.process()
			var o observer
			l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				return "v", cause
			}, WithLoadObserver(o.observe))
			as := func(name string) context.Context { return context.WithValue(t.Context(), contextKey{}, name) }

			for _, name := range []string{"one", "two"} {
				first := goLoad(as(name), l, "k")
				time.Sleep(300 * time.Millisecond)
				require.Empty(t, o.takeFirsts())
				second := goLoad(as("second"), l, "k")
				impatient, cancel := context.WithTimeout(as("third"), 300*time.Millisecond)
				<-goLoad(impatient, l, "k")
				cancel()
				require.Equal(t, []any{name}, o.takeFirsts())
				<-first
				<-second
				require.Equal(t, []any{name}, o.takeFirsts())
				time.Sleep(time.Minute)
				b.remove("k")
			}
		})
	}
}

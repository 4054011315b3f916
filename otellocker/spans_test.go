package otellocker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/otellocker"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func newTracers(t testing.TB) (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })
	return p, recorder
}

// lines describes the spans of this package: its parent, name, seconds, attributes, status and
// links. Parents and links are named.
func lines(spans []sdktrace.ReadOnlySpan) []string {
	names := map[trace.SpanID]string{}
	for _, s := range spans {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	found := []string{}
	for _, s := range spans {
		if s.InstrumentationScope().Name != "github.com/golockers/locker/otellocker" {
			continue
		}
		set := attribute.NewSet(s.Attributes()...)
		line := fmt.Sprintf("%s: %s %.1f %s", names[s.Parent().SpanID()], s.Name(),
			s.EndTime().Sub(s.StartTime()).Seconds(), set.Encoded(attribute.DefaultEncoder()))
		if code := s.Status().Code.String(); code != "Unset" {
			line += " " + code + s.Status().Description
		}
		for _, link := range s.Links() {
			line += " -> " + names[link.SpanContext.SpanID()]
		}
		found = append(found, strings.ReplaceAll(line, "locker.", ""))
	}
	slices.Sort(found)
	return found
}

func TestSpans(t *testing.T) {
	p, recorder := newTracers(t)
	everything(t, p.Tracer("test"), otellocker.WithTracerProvider(p))
	assert.Equal(t, []string{
		"detached: acquire 0.0 outcome=acquired,waited=false",
		"detached: hold 0.0 end=detached",
		"failed: acquire 1.0 error.type=timeout,outcome=failed,waited=false Error",
		"forgotten: acquire 0.0 outcome=acquired,waited=false",
		"forgotten: hold 10.0 error.type=not_held,end=lost Error",
		"joined: load 0.9 load.kind=joined -> loaded",
		"load failed: load 1.0 error.type=_OTHER,load.kind=load-failed Error",
		"loaded unlocked: load 1.0 load.kind=loaded-unlocked",
		"loaded: load 1.0 load.kind=loaded",
		"lost by extension: acquire 0.0 outcome=acquired,waited=false",
		"lost by extension: hold 0.0 error.type=not_held,end=lost Error",
		"lost by unlock: acquire 0.0 outcome=acquired,waited=false",
		"lost by unlock: hold 0.0 error.type=not_held,end=lost Error",
		"minimum hold: acquire 0.0 outcome=acquired,waited=false",
		"minimum hold: hold 0.0 end=detached",
		"refused: acquire 0.0 outcome=refused,waited=false",
		"refused: acquire 1.0 outcome=refused,waited=true",
		"refused: hold 0.0 end=unlocked", // it was unlocked there
		"resumed: acquire 0.0 outcome=acquired,waited=false",
		"stale again: load 0.0 load.kind=stale",
		"stale again: refresh 1.0 error.type=_OTHER,load.kind=refresh-failed Error",
		"stale: load 0.0 load.kind=stale",
		"stale: refresh 1.0 load.kind=refreshed",
		"store failed: load 1.0 load.kind=loaded",
		"store failed: store 0.0 error.type=_OTHER,load.kind=store-failed Error",
		"unlock without an answer: acquire 0.0 outcome=acquired,waited=false",
		"unlock without an answer: hold 0.0 error.type=_OTHER,end=unknown Error",
		"unlocked: acquire 0.0 outcome=acquired,waited=false",
		"unlocked: hold 8.0 end=unlocked",
		"waited: acquire 1.0 outcome=acquired,waited=true",
		"waited: load 1.0 load.kind=waited",
	}, lines(recorder.Ended()))
}

// Without a span to belong to there is none.
func TestNoSpans(t *testing.T) {
	p, recorder := newTracers(t)
	everything(t, nil, otellocker.WithTracerProvider(p))
	assert.Empty(t, recorder.Ended())
}

// No key gets into a span, not even in the text of an error, unless it is mapped.
func TestSpansKeepKeysSecret(t *testing.T) {
	for want, f := range map[string]func(string) string{
		"":      nil,
		"a key": func(string) string { return "a key" },
	} {
		p, recorder := newTracers(t)
		everything(t, p.Tracer("test"), otellocker.WithTracerProvider(p), otellocker.WithKeyAttribute(f),
			otellocker.WithAttributes(attribute.String("locker.backend", "test")))
		ours := 0
		for _, s := range recorder.Ended() {
			if s.InstrumentationScope().Name == "test" {
				continue
			}
			ours++
			assert.NotContains(t, fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status()), "secret")
			set := attribute.NewSet(s.Attributes()...)
			key, _ := set.Value("locker.key")
			assert.Equal(t, want, key.AsString())
			backend, _ := set.Value("locker.backend")
			assert.Equal(t, "test", backend.AsString())
		}
		assert.Equal(t, 31, ours)
	}
}

// A follower whose load fails, or that gives up, is linked as well. A first caller without a span
// is no link.
func TestLinks(t *testing.T) {
	p, recorder := newTracers(t)
	tracer := p.Tracer("test")
	synctest.Test(t, func(t *testing.T) {
		loader := singleflight.NewLoader(lockertest.New(), &cache{},
			func(context.Context, string) (string, error) { time.Sleep(time.Second); return "", errBackend },
			singleflight.WithLoadObserver(otellocker.NewLoadObserver(otellocker.WithTracerProvider(p))))
		for _, first := range []trace.Tracer{tracer, nil} {
			go func() { _, _ = loader.Load(within(t, first, "first"), "k") }()
			synctest.Wait()
			go func() {
				_, err := loader.Load(within(t, tracer, "second"), "k")
				assert.ErrorIs(t, err, errBackend)
			}()
			ctx, cancel := context.WithCancelCause(within(t, tracer, "third"))
			time.AfterFunc(time.Second/2, func() { cancel(errors.New("gone")) })
			_, err := loader.Load(ctx, "k")
			assert.ErrorIs(t, err, context.Canceled)
			time.Sleep(time.Minute)
		}
	})
	assert.Equal(t, []string{
		"first: load 1.0 error.type=_OTHER,load.kind=load-failed Error",
		"second: load 1.0 error.type=_OTHER,load.kind=load-failed Error",
		"second: load 1.0 error.type=_OTHER,load.kind=load-failed Error -> first",
		"third: load 0.5 error.type=canceled,load.kind=load-failed Error",
		"third: load 0.5 error.type=canceled,load.kind=load-failed Error -> first",
	}, lines(recorder.Ended()))
}

// Arguments that the backend refuses are an error of their own.
func TestInvalidErrorType(t *testing.T) {
	p, recorder := newTracers(t)
	backend := lockertest.New()
	backend.Fail(lockertest.Acquire, locker.ErrInvalidTTL)
	l := locker.Observed(backend, otellocker.NewObserver(otellocker.WithTracerProvider(p)))
	_, err := locker.TryLock(within(t, p.Tracer("test"), "invalid"), l, "k", time.Minute)
	require.ErrorIs(t, err, locker.ErrInvalidTTL)
	assert.Contains(t, lines(recorder.Ended())[0], "error.type=invalid,")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// miss is a key that expires while a fleet wants it.
type miss struct {
	name       string
	processes  int
	goroutines int
	load       time.Duration
	rounds     int // in a fleet
	every      int // so many of the bench's rounds it has its turn once
	fail       bool
}

var misses = []miss{
	{name: "8x50-20ms", processes: 8, goroutines: 50, load: 20 * time.Millisecond, rounds: 13, every: 1},
	{name: "8x50-230ms", processes: 8, goroutines: 50, load: 230 * time.Millisecond, rounds: 2, every: 1},
	{name: "8x50-5ms", processes: 8, goroutines: 50, load: 5 * time.Millisecond, rounds: 5, every: 4},
	{name: "1x50-20ms", processes: 1, goroutines: 50, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "2x50-20ms", processes: 2, goroutines: 50, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "4x50-20ms", processes: 4, goroutines: 50, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "16x50-20ms", processes: 16, goroutines: 50, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "8x10-20ms", processes: 8, goroutines: 10, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "8x250-20ms", processes: 8, goroutines: 250, load: 20 * time.Millisecond, rounds: 5, every: 4},
	{name: "8x10-50ms-fails", processes: 8, goroutines: 10, load: 50 * time.Millisecond, rounds: 2, every: 1, fail: true},
}

func runStampede(ctx context.Context, b *bench) error {
	for round := range b.rounds {
		for _, m := range misses {
			if round%m.every != 0 {
				continue
			}
			for _, st := range strategies {
				if err := b.miss(ctx, m, st); err != nil {
					return err
				}
			}
		}
	}
	return b.slowSource(ctx)
}

// miss runs one strategy's rounds in a fleet of its own, and records each.
func (b *bench) miss(ctx context.Context, m miss, st strategy) error {
	s := sample{section: "stampede", scenario: m.name, who: st.name}
	if !b.match.MatchString(s.name()) {
		return nil
	}
	fault := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if st.ours {
			b.ourFault("%s: %w", s.name(), err)
		}
		s.metrics, s.err = nil, err.Error()
		return b.record(s)
	}
	j := b.job("stampede", st.name, newKey(m.name))
	j.Count, j.Load = m.goroutines, m.load
	f, err := startFleet(ctx, m.processes, j)
	if err != nil {
		return fault(err)
	}
	defer f.kill()
	defer b.redis.client.Del(context.WithoutCancel(ctx), cached(j.Key)...)
	for round := range m.rounds + 1 {
		if err := b.redis.client.Del(ctx, cached(j.Key)...).Err(); err != nil {
			return err
		}
		before, err := b.redis.requests(ctx)
		if err != nil {
			return err
		}
		// The source may be called by each process after the other.
		replies, err := f.do(ctx, order{Round: round, Fail: m.fail}, time.Duration(m.processes)*m.load)
		if err != nil {
			return fault(err)
		}
		time.Sleep(10 * time.Millisecond) // for what is done behind the callers' backs
		after, err := b.redis.requests(ctx)
		if err != nil {
			return err
		}
		if round == 0 {
			continue // it opened the connections
		}
		s.metrics, err = gather(replies, m, after-before-1)
		if err != nil {
			return fault(err)
		}
		if err := b.record(s); err != nil {
			return err
		}
	}
	return nil
}

// gather puts the replies of all processes together.
func gather(replies []reply, m miss, requests int64) ([]metric, error) {
	var took []time.Duration
	var loads int64
	var loadEnd time.Time
	var start time.Time
	fails, wrong := 0, 0
	for _, r := range replies {
		took = append(took, r.Took...)
		loads += r.Loads
		if r.LoadEnd.After(loadEnd) {
			loadEnd = r.LoadEnd
		}
		fails += r.Fails
		wrong += r.Wrong
		start = r.Start
	}
	want := 0
	if m.fail {
		want = m.processes * m.goroutines
	}
	if fails != want || wrong > 0 {
		return nil, fmt.Errorf("%d callers failed, %d got an old value: %s", fails, wrong, replies[0].Error)
	}
	slices.Sort(took)
	last := took[len(took)-1]
	metrics := []metric{
		{float64(loads), "loads"},
		{float64(requests), "requests"},
		{milliseconds(took[len(took)/2]), "median-caller-ms"},
		{milliseconds(last), "last-caller-ms"},
	}
	if !m.fail {
		metrics = append(metrics, metric{milliseconds(start.Add(last).Sub(loadEnd)), "last-after-load-ms"})
	}
	return metrics, nil
}

// slowSource has a load take 2.5 times as long as the ttl of its lock, and callers come again and again. The
// strategies do it at the same time, since all they do is wait.
func (b *bench) slowSource(ctx context.Context) error {
	const processes, name = 4, "slow-source"
	window := max(b.scaled(8*time.Second), 4*time.Second)
	samples := make([]sample, len(strategies))
	var all sync.WaitGroup
	for i, st := range strategies {
		all.Go(func() {
			s := sample{section: "stampede", scenario: name, who: st.name}
			metrics, err := func() ([]metric, error) {
				j := b.job("stampede", st.name, newKey(name))
				j.Count, j.Load, j.TTL = 1, 2500*time.Millisecond, time.Second
				f, err := startFleet(ctx, processes, j)
				if err != nil {
					return nil, err
				}
				defer f.kill()
				defer b.redis.client.Del(context.WithoutCancel(ctx), cached(j.Key)...)
				filled := make(chan float64, 1)
				go func() { filled <- b.filled(ctx, j.Key, window) }()
				replies, err := f.do(ctx, order{For: window, Again: true}, window+j.Load)
				if err != nil {
					return nil, err
				}
				var loads int64
				for _, r := range replies {
					loads += r.Loads
				}
				return []metric{{float64(loads), "loads"}, {<-filled, "filled-after-s"}}, firstError(replies)
			}()
			if err != nil {
				s.err = err.Error()
			}
			s.metrics = metrics
			samples[i] = s
		})
	}
	all.Wait()
	for i, s := range samples {
		if s.err != "" && strategies[i].ours && ctx.Err() == nil {
			b.ourFault("%s: %s", s.name(), s.err)
		}
		if err := b.record(s); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// filled is how many seconds it took until the cache had a value, or -1 when it never did.
func (b *bench) filled(ctx context.Context, key string, within time.Duration) float64 {
	start := time.Now()
	for time.Since(start) < within && ctx.Err() == nil {
		// rockscache has a hash in which the value is a field.
		found, err := b.redis.client.Exists(ctx, key, "cache:"+key).Result()
		if err == nil && found > 0 && b.redis.client.Type(ctx, key).Val() == "hash" {
			found = b.redis.client.HStrLen(ctx, key, "value").Val()
		}
		if err != nil {
			return -1
		}
		if found > 0 {
			return time.Since(start).Seconds()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return -1
}

// loading is a process of callers.
type loading struct {
	job
	load    load
	round   atomic.Int64
	fail    atomic.Bool
	loads   atomic.Int64
	loadEnd atomic.Int64
}

func newLoading(j job) (worker, error) {
	l := &loading{job: j}
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == j.Who })
	if i < 0 {
		return nil, fmt.Errorf("no strategy %q", j.Who)
	}
	l.load = strategies[i].build(service{client: goredis(j), key: j.Key, source: l.source, lockTTL: j.TTL})
	return l, nil
}

// errSource is the failing source's.
var errSource = errors.New("the source failed")

// source is counted when it starts: a load that is given up is a load too.
func (l *loading) source() (string, error) {
	l.loads.Add(1)
	time.Sleep(l.Load)
	l.loadEnd.Store(time.Now().UnixNano())
	if l.fail.Load() {
		return "", errSource
	}
	return "value " + strconv.FormatInt(l.round.Load(), 10), nil
}

func (l *loading) run(ctx context.Context, o order) reply {
	l.round.Store(int64(o.Round))
	l.fail.Store(o.Fail)
	want := "value " + strconv.Itoa(o.Round)
	results := make([]reply, l.Count) // by caller: they share nothing that they could wait for
	var callers sync.WaitGroup
	start := make(chan struct{})
	end := o.Start.Add(o.For)
	for i := range results {
		callers.Go(func() {
			r := &results[i]
			r.Took = make([]time.Duration, 0, 1)
			<-start
			for {
				v, err := l.load(ctx)
				r.Took = append(r.Took, time.Since(o.Start))
				if err != nil {
					if r.Fails++; r.Error == "" {
						r.Error = err.Error()
					}
				} else if v != want {
					r.Wrong++
				}
				if !o.Again || !time.Now().Before(end) {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	time.Sleep(time.Until(o.Start))
	close(start)
	callers.Wait()
	time.Sleep(5 * time.Millisecond) // for the others: to send the reply takes a processor
	r := reply{Start: o.Start, Loads: l.loads.Swap(0)}
	for _, caller := range results {
		r.Took = append(r.Took, caller.Took...)
		r.Fails += caller.Fails
		r.Wrong += caller.Wrong
		if r.Error == "" {
			r.Error = caller.Error
		}
	}
	if n := l.loadEnd.Swap(0); n > 0 {
		r.LoadEnd = time.Unix(0, n)
	}
	return r
}

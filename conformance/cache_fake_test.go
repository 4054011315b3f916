package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/stretchr/testify/require"
)

// cacheBugs are the mistakes that a cacheFake can make.
type cacheBugs struct {
	missIsError, staleMissIsError, emptyIsMiss              bool
	setOnlyAdds, setInTwoSteps, setKeepsExpiry              bool
	name                                                    func(string) string
	lasts                                                   func(ttl time.Duration) time.Duration
	addNever, addIsSet, addRenews, addInTwoSteps            bool
	addSeesExpired, addSeesStale, addInTwoStepsBesideStale  bool
	noStale, staleForever, staleKeepsFirst                  bool
	deleteNothing, deleteAll, deleteKeepsStale              bool
	deleteAbsentIsError, deleteLeavesMark                   bool
	contextIsMiss, contextIsOtherError                      bool
	damagedIsMiss, damagedIsValue, damagedIsTimeout         bool
	damagedStays                                            bool
	putAlways, putInTwoSteps, versionsNeverEnd, deleteOnly  bool
	setKeepsLoad, lookTakes, loadHidesStale, failureForever bool
	loadHidesValue, outdatedDeletes                         bool
	ignoresContext, hidesContextError, hidesErrors, doPanic bool
}

// cacheFake is a cache in memory. For each operation it asks a server for an echo, if it has one.
type cacheFake struct {
	cacheBugs
	store      *cacheFakeStore
	addr       string
	ttl, stale time.Duration
}

// cacheFakeStore is what the fakes of one backend share.
type cacheFakeStore struct {
	mu      sync.Mutex
	entries map[string]cacheFakeEntry
	loads   map[string]cacheFakeLoad
	last    uint64
}

type cacheFakeEntry struct {
	v, old     string // old is a copy for Stale, of the first value
	fresh, end time.Time
	damaged    bool
	deleted    bool
}

// cacheFakeLoad is the load of a key.
type cacheFakeLoad struct {
	version  uint64
	failure  string
	failedAt time.Time
	end      time.Time
}

var errFake = errors.New("it is broken")

// cacheFakes is the configuration of fakes with these bugs, without a server.
func cacheFakes(bugs cacheBugs) CacheConfig[string] {
	store := &cacheFakeStore{entries: make(map[string]cacheFakeEntry), loads: make(map[string]cacheFakeLoad)}
	return CacheConfig[string]{
		New: func(_ testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return &cacheFake{cacheBugs: bugs, store: store, addr: addr, ttl: ttl, stale: stale}
		},
		Damage: func(_ testing.TB, key string) {
			store.mu.Lock()
			defer store.mu.Unlock()
			e := store.entries[key]
			e.damaged = true
			store.entries[key] = e
		},
	}
}

// echoServer returns the address of a server that sends back what it gets.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// begin asks the server, and returns the key.
func (f *cacheFake) begin(ctx context.Context, key string) (string, error) {
	if f.doPanic {
		panic("as it should not")
	}
	err := ctx.Err()
	if err == nil && f.addr != "" {
		err = f.echo(ctx)
	}
	return f.named(key), err
}

func (f *cacheFake) named(key string) string {
	if f.name != nil {
		key = f.name(key)
	}
	return key
}

func (f *cacheFake) echo(ctx context.Context) (err error) {
	defer func() {
		if ctx.Err() != nil && !f.hidesContextError {
			err = ctx.Err()
		}
	}()
	if f.ignoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(conn, "are you there?"); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	if err != nil && f.hidesContextError {
		err = errFake
	}
	return err
}

func (f *cacheFake) Get(ctx context.Context, key string) (string, bool, error) {
	return f.read(ctx, key, f.missIsError, func(e cacheFakeEntry) (string, time.Time) { return e.v, e.fresh })
}

func (f *cacheFake) Stale(ctx context.Context, key string) (string, bool, error) {
	return f.read(ctx, key, f.staleMissIsError, func(e cacheFakeEntry) (string, time.Time) {
		if f.staleKeepsFirst {
			return e.old, e.end
		}
		return e.v, e.end
	})
}

func (f *cacheFake) read(ctx context.Context, key string, missIsError bool,
	value func(cacheFakeEntry) (string, time.Time)) (string, bool, error) {
	key, err := f.begin(ctx, key)
	if err != nil {
		switch {
		case f.contextIsMiss && ctx.Err() != nil, f.hidesErrors && ctx.Err() == nil:
			return "", false, nil
		case f.contextIsOtherError && ctx.Err() != nil:
			return "", false, errFake
		}
		return "", false, err
	}
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	e, exists := f.store.entries[key]
	v, end := value(e)
	switch {
	case e.damaged && f.damagedIsMiss:
		return "", false, nil
	case e.damaged && f.damagedIsValue:
		return "garbage", true, nil
	case e.damaged && f.damagedIsTimeout:
		return "", false, context.DeadlineExceeded
	case e.damaged:
		return "", false, errFake
	case exists && !e.deleted && time.Now().Before(end) && (v != "" || !f.emptyIsMiss):
		return v, true, nil
	case missIsError:
		return "", false, errFake
	}
	return "", false, nil
}

func (f *cacheFake) Set(ctx context.Context, key, v string) error {
	key, err := f.begin(ctx, key)
	if err != nil {
		if f.contextIsMiss {
			err = nil
		}
		return err
	}
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if f.setOnlyAdds && f.isFresh(key) || f.damagedStays && f.store.entries[key].damaged {
		return nil
	}
	if f.setInTwoSteps && v != "" {
		f.put(key, v[:len(v)/2])
		f.pause()
	}
	f.put(key, v)
	return nil
}

func (f *cacheFake) Add(ctx context.Context, key, v string) (bool, error) {
	key, err := f.begin(ctx, key)
	if err != nil {
		return false, err
	}
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	old, exists := f.store.entries[key]
	isFresh := f.isFresh(key) || f.addNever
	isStale := !isFresh && exists && time.Now().Before(old.end)
	switch {
	case f.addIsSet:
		isFresh = false
	case f.addSeesExpired && exists && !old.deleted, f.addSeesStale && isStale, f.deleteLeavesMark && old.deleted:
		isFresh = true
	case f.addInTwoSteps && !exists, f.addInTwoStepsBesideStale && isStale:
		f.pause()
	case f.addRenews && isFresh:
		f.put(key, old.v)
	}
	if isFresh {
		return false, nil
	}
	f.put(key, v)
	return true, nil
}

func (f *cacheFake) Delete(ctx context.Context, key string) error {
	key, err := f.begin(ctx, key)
	if err != nil {
		return err
	}
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	e, exists := f.store.entries[key]
	switch {
	case (!exists || e.deleted) && f.deleteAbsentIsError:
		return errFake
	case f.deleteNothing:
	case f.deleteAll:
		clear(f.store.entries)
	case f.deleteKeepsStale:
		e.fresh = time.Time{}
		f.store.entries[key] = e
	case f.deleteLeavesMark:
		f.store.entries[key] = cacheFakeEntry{deleted: true}
	default:
		delete(f.store.entries, key)
	}
	if !f.deleteOnly && !f.deleteNothing {
		delete(f.store.loads, key)
	}
	return nil
}

// pause lets others in between two steps.
func (f *cacheFake) pause() {
	f.store.mu.Unlock()
	time.Sleep(2 * time.Millisecond)
	f.store.mu.Lock()
}

func (f *cacheFake) isFresh(key string) bool {
	e, exists := f.store.entries[key]
	return exists && !e.deleted && time.Now().Before(e.fresh)
}

func (f *cacheFake) Look(ctx context.Context, all ...*slots.Slot[string]) error {
	for _, s := range all {
		v, ok, err := f.Get(ctx, s.Key)
		if err != nil || ok {
			s.Value, s.Found, s.Err = v, ok, err
			f.store.mu.Lock()
			s.Left = time.Until(f.store.entries[f.named(s.Key)].fresh)
			f.store.mu.Unlock()
			if err != nil || s.Left >= s.Ahead {
				continue
			}
		}
		f.look(s)
	}
	return nil
}

func (f *cacheFake) look(s *slots.Slot[string]) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	key := f.named(s.Key)
	load := f.store.loads[key]
	if load.version != 0 && !time.Now().Before(load.end) && !f.failureForever {
		load = cacheFakeLoad{}
	}
	if age := time.Since(load.failedAt); !s.Found && load.failure != "" && (age < s.Since || f.failureForever) {
		s.Failed, s.Failure, s.Age = true, load.failure, age
		return
	}
	if s.Hold <= 0 {
		return
	}
	if load.version == 0 || load.failure != "" || f.lookTakes {
		f.store.last++
		load = cacheFakeLoad{version: f.store.last, end: time.Now().Add(s.Hold)}
		f.store.loads[key] = load
	}
	if f.loadHidesStale {
		delete(f.store.entries, key)
	}
	s.Version = load.version
	if f.loadHidesValue && s.Found {
		s.Found = false
	}
}

func (f *cacheFake) Put(ctx context.Context, all ...*slots.Slot[string]) error {
	for _, s := range all {
		key, err := f.begin(ctx, s.Key)
		if err != nil {
			return err
		}
		f.putSlot(key, s)
	}
	return nil
}

func (f *cacheFake) putSlot(key string, s *slots.Slot[string]) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	load := f.store.loads[key]
	if s.TTL < 0 && f.outdatedDeletes {
		load.version, load.failure = s.Version, ""
	}
	if (load.version != s.Version || load.failure != "") && !f.putAlways {
		return
	}
	if f.putInTwoSteps {
		f.pause()
	}
	s.Stored = true
	if s.Failed {
		f.store.loads[key] = cacheFakeLoad{load.version, s.Failure, time.Now(), time.Now().Add(s.TTL)}
		return
	}
	f.put(key, s.Value)
	if s.TTL < 0 {
		delete(f.store.entries, key)
	}
	if f.versionsNeverEnd {
		f.store.loads[key] = load
	}
}

func (f *cacheFake) put(key, v string) {
	if !f.setKeepsLoad {
		delete(f.store.loads, key)
	}
	ttl, stale := f.ttl, f.stale
	if f.lasts != nil {
		ttl = f.lasts(ttl)
	}
	switch {
	case f.noStale:
		stale = 0
	case f.staleForever:
		stale = 24 * time.Hour
	}
	fresh := time.Now().Add(ttl)
	e := cacheFakeEntry{v: strings.Clone(v), old: v, fresh: fresh, end: fresh.Add(stale)}
	if old, exists := f.store.entries[key]; exists {
		e.old = old.old
		if f.setKeepsExpiry {
			e.fresh, e.end = old.fresh, old.end
		}
	}
	f.store.entries[key] = e
}

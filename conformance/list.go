package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/names"
)

func listChecks() []harness.Check {
	list := []harness.Check{{
		Name:   "list/prefix",
		Rules:  []string{l1Held, l2Once},
		Direct: true,
		Causes: "a prefix that is used as a pattern: escape *, ?, [, ] and \\ (% and _ in SQL); one that is compared with the key as " +
			"it is stored; a key that equals the prefix left out; locks that have expired or been released.",
		Run: checkListPrefix,
	}, {
		Name:   "list/all",
		Rules:  []string{l1Held, l2Once},
		Causes: "an empty prefix that is refused, or that matches the adapter's own bookkeeping.",
		Run:    checkListAll,
	}, {
		Name:   "list/many",
		Alone:  true, // it loads the backend with many locks
		Rules:  []string{l2Once},
		Causes: "the first page of a cursor taken for all; a cursor, such as SCAN's, that yields a key twice.",
		Run:    checkListMany,
	}, {
		Name:   "list/concurrent",
		Alone:  true, // it loads the backend all the time
		Rules:  []string{l2Once},
		Causes: "pages by offset, which shift when locks come and go: continue after the last key; a key that is met twice.",
		Run:    checkListConcurrent,
	}, {
		Name:   "list/queue",
		Rules:  []string{l1Held, q6Queued},
		Needs:  harness.NeedsWait,
		Causes: "the waiters left out of the Info, which then reports none. If their number is not known, it is -1.",
		Run:    checkListQueue,
	}, {
		Name:   "list/break",
		Rules:  []string{l2Once, l6Body, c14NothingLeft},
		Causes: "an iterator that ignores what yield returns, or that holds a lock or a connection of its own meanwhile.",
		Run:    checkListBreak,
	}, {
		Name:   "list/context",
		Rules:  []string{c9Before, c9During, l4Errors},
		Causes: "a context that is not passed on, or examined only before the first page; an iteration that ends without its error.",
		Run:    checkListContext,
	}}
	for i := range list {
		list[i].Needs |= harness.NeedsList
	}
	return list
}

// lists makes c list a prefix, and returns what is listed by key. The check ends if a key does not
// begin with the prefix, is there twice, or has no token.
func lists(c *harness.Client, prefix string) (harness.Call, map[string]locker.Info) {
	return listed(c.Must(c.Do("List", prefix, "", 0), true, "the backend works"))
}

func listed(r harness.Call) (harness.Call, map[string]locker.Info) {
	e, all := r.Client.Env, make(map[string]locker.Info)
	wrong := func(want, key string) {
		e.FailAbout("", fmt.Sprintf("%s.List(%s) yields %s", r.Client.Name, e.Short(r.Key), want), "it yields "+harness.Quote(key))
	}
	for _, entry := range r.Listed {
		switch _, twice := all[entry.Key]; {
		case !strings.HasPrefix(entry.Key, r.Key):
			wrong("only keys that begin with that", entry.Key)
		case twice:
			wrong("each key once", entry.Key+", twice")
		case entry.Err != nil && strings.HasPrefix(entry.Key, "conformance/"):
			wrong("no error for a lock that is held", fmt.Sprintf("%s, %q", entry.Key, entry.Err))
		case entry.Err == nil && entry.Token == "":
			wrong("only locks that are held", entry.Key+", without a token")
		}
		all[entry.Key] = entry.Info
	}
	return r, all
}

// contains ends the check unless all, which r listed, contains what held took. It removes that from
// all.
func contains(r harness.Call, all map[string]locker.Info, held harness.Call) {
	e := r.Client.Env
	info, ok := all[held.Key]
	if !ok {
		e.FailAbout(held.Key, fmt.Sprintf("%s.List(%s) yields %s, which is held", r.Client.Name, e.Short(r.Key), e.Short(held.Key)),
			"it does not")
	}
	e.Agrees(r, info, held, "it has been held all the time")
	e.Uncontended(r, info)
	delete(all, held.Key)
}

// exactly ends the check unless c lists what held took, as far as the keys begin with prefix, and
// nothing else.
func exactly(c *harness.Client, prefix string, held []harness.Call) {
	r, all := lists(c, prefix)
	for _, h := range held {
		if strings.HasPrefix(h.Key, prefix) {
			contains(r, all, h)
		}
	}
	for key := range all {
		c.Env.FailAbout(key, fmt.Sprintf("%s.List(%s) yields only locks that are held", c.Name, c.Env.Short(prefix)),
			"it yields "+harness.Quote(key)+", which is free")
	}
}

func checkListPrefix(e *harness.Env) {
	base := e.Label("k", strings.ToLower(harness.RandomKey())+"x")
	pairs := names.Pairs(base)
	exactly(e.A, base, nil)
	var held []harness.Call
	keys := append(names.All(pairs), base+"a", base+"aa", base+"aab", base+"ab", base+"\xff", base+"\xff\x00", base+"\xff\xffa")
	slices.Sort(keys)
	for i, key := range slices.Compact(keys) {
		if strings.HasPrefix(key, base) && len(key) <= 200 {
			r := e.A.Quietly("Acquire", key, e.Token(), harness.Long+time.Duration(i)*time.Minute)
			held = append(held, e.A.Must(r, true, "the key is fresh"))
		}
	}
	e.Note("A takes %d locks whose keys begin with %s", len(held), e.Short(base))
	forms := make(map[string]int)
	for _, p := range pairs {
		if forms[p.Rule]++; forms[p.Rule] == 1 || strings.Contains(p.Rule, "pattern") || strings.Contains(p.Rule, "glob") {
			exactly(e.A, p.A, held)
			exactly(e.A, p.B, held)
		}
	}
	for _, end := range []string{"a", "a*", "a?", "a[", "*", "?", "[", "[a-z]", `\`, "/", "%", "_", "none", "{", "^a", "\xff", "\xff\xff", " ", "  ",
		"\t", "\n", "\x00", "\x00x"} {
		exactly(e.A, base+end, held)
	}
	exactly(e.A, base[:len(base)-1], held)
	releasesAll(e, held[10:])
	held = held[:10]
	brief := e.A.Takes(base+"brief", e.Token(), 30*time.Millisecond, "the key is fresh")
	next := e.B.TakesOver(brief, e.Token(), harness.Long)
	e.B.Releases(brief.Key, next.Token, "B holds it")
	exactly(e.A, base, held)
	releasesAll(e, held)
	exactly(e.A, base, nil)
}

func checkListAll(e *harness.Env) {
	var held []harness.Call
	for _, key := range []string{e.Key(), e.Label("k", harness.RandomKey()[1:]), "\x00" + e.Key()} {
		held = append(held, e.A.Takes(key, e.Token(), harness.Long, "the key is fresh"))
	}
	if e.Has(harness.NeedsFence) {
		e.A.Must(e.A.Do("Fence", held[0].Key, held[0].Token, 0), true, "A holds it")
	}
	r, all := lists(e.A, "")
	for _, h := range held {
		contains(r, all, h)
		e.A.Releases(h.Key, h.Token, "A holds it")
	}
}

// takesMany makes A take many locks whose keys begin with base, as far as there is time.
func takesMany(e *harness.Env, base string, n int) []harness.Call {
	all := make([]harness.Call, n)
	end := time.Now().Add(3 * time.Second)
	e.Spread(n, func(i int) {
		if time.Now().Before(end) || i == 0 {
			r := e.A.Quietly("Acquire", fmt.Sprintf("%s/%d", base, i), harness.RandomToken(), harness.Long)
			all[i] = e.A.Must(r, true, "the key is fresh")
		}
	})
	held := all[:0]
	for _, r := range all {
		if r.OK {
			held = append(held, r)
		}
	}
	e.Note("A takes %s whose keys begin with %s", harness.Plural(len(held), "lock"), e.Short(base))
	return held
}

// releasesAll makes A release what held took.
func releasesAll(e *harness.Env, held []harness.Call) {
	e.Spread(len(held), func(i int) { e.A.Must(e.A.Quietly("Release", held[i].Key, held[i].Token, 0), true, "A holds it") })
}

func checkListMany(e *harness.Env) {
	base := e.Key()
	held := takesMany(e, base, 2500)
	exactly(e.A, base+"/", held)
	exactly(e.A, base+"/1", held)
	releasesAll(e, held[1:])
	exactly(e.A, base+"/", held[:1])
}

// checkListConcurrent lists locks that stay held while others of the same prefix come and go.
func checkListConcurrent(e *harness.Env) {
	base := e.Key()
	held := takesMany(e, base+"/stays", 300)
	ctx, cancel := context.WithCancel(e.Ctx)
	e.Note("meanwhile B and C take and release others")
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Each(6, func(i int) {
			c := e.Clients()[1+i%2]
			for n := 0; ctx.Err() == nil; n++ {
				key, token := fmt.Sprintf("%s/%d/%d", base, i, n%40), harness.RandomToken()
				c.Must(c.Quietly("Acquire", key, token, harness.Long), true, "it is free")
				c.Must(c.Quietly("Release", key, token, 0), true, "it has just been acquired")
			}
		})
	}()
	e.Until(20, time.Second, func() {
		r, all := lists(e.A, base)
		for _, h := range held {
			contains(r, all, h)
		}
		for key := range all {
			if strings.Count(strings.TrimPrefix(key, base), "/") != 2 {
				e.FailAbout("", "A.List yields only keys that some token has held", "it yields "+harness.Quote(key))
			}
		}
	})
	cancel()
	<-done
	e.GoOn()
	exactly(e.A, base, held)
	releasesAll(e, held)
}

// checkListQueue lists a lock with two waiters, which then leave.
func checkListQueue(e *harness.Env) {
	key := e.Key()
	held := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	ctx, leave := context.WithCancel(e.Ctx)
	defer leave()
	b, c := e.B.Waits(ctx, key, e.Token(), harness.Long), e.C.Waits(ctx, key, e.Token(), harness.Long)
	list := func() (harness.Call, locker.Info) {
		r, all := listed(e.A.Must(e.A.Quietly("List", key, "", 0), true, "the backend works"))
		info, ok := all[key]
		if !ok {
			e.Show(r)
			e.FailAbout(key, fmt.Sprintf("A.List(%s) yields it: it is held", e.Short(key)), "it does not")
		}
		if len(all) > 1 {
			e.Show(r)
			e.FailAbout(key, fmt.Sprintf("A.List(%s) yields one lock", e.Short(key)), fmt.Sprintf("it yields %d", len(all)))
		}
		return r, info
	}
	reports(held, 2, "B and C wait", list)
	leave()
	for _, left := range []<-chan harness.Call{b, c} {
		e.Ended(ctx, e.Outcome(left, time.Now(), "its context was canceled"), "it was canceled")
	}
	reports(held, 0, "both waiters have left", list)
	e.A.Releases(key, held.Token, "A holds it")
}

// checkListBreak leaves the iteration early, and uses the Locker in its body.
func checkListBreak(e *harness.Env) {
	base := e.Key()
	const few = 40
	held := takesMany(e, base, few)
	tokens := make(map[string]string)
	for _, h := range held {
		tokens[h.Key] = h.Token
	}
	l := e.A.Locker.(locker.Lister)
	e.Note("A lists them %d times, and leaves the iteration after the first lock", 2*few)
	for range 2 * few {
		for info, err := range l.List(e.Ctx, base) {
			if err != nil || tokens[info.Key] != info.Token || info.Token == "" {
				e.Fail("the first lock that A.List yields is held by A", fmt.Sprintf("it yields %+v, %v", info, err))
			}
			break
		}
	}
	e.Note("A releases each lock that it lists in the body of the loop")
	n := 0
	for info, err := range l.List(e.Ctx, base) {
		if err != nil {
			e.Fail("A.List yields no error", fmt.Sprintf("it yields %v", err))
		}
		e.A.Must(e.A.Quietly("Release", info.Key, tokens[info.Key], 0), true, "A holds it")
		n++
	}
	if n != len(held) {
		e.Fail(fmt.Sprintf("A.List yields %d locks", len(held)), fmt.Sprintf("it yields %d", n))
	}
	exactly(e.A, base, nil)
	const limit = 60
	e.Settles(limit)
}

func checkListContext(e *harness.Env) {
	base := e.Key()
	held := takesMany(e, base, 200)
	for how, ctx := range doneContexts(e.Ctx) {
		r := e.Ended(ctx, e.A.DoContext(ctx, "List", base, "", 0), "its context was "+how+" before the call")
		if len(r.Listed) > 0 {
			e.Fail("A.List yields its context's error and nothing else", "A.List = "+r.Result())
		}
	}
	// A List that has read all locks before it yields the first may go on. The others end with the
	// context's error.
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	e.Note("the ctx of A's List is canceled when it has yielded the first lock")
	n, last := 0, error(nil)
	for info, err := range e.A.Locker.(locker.Lister).List(ctx, base) {
		if last != nil {
			e.Fail("an error without a key ends the iteration", fmt.Sprintf("after it A.List yields %+v, %v", info, err))
		}
		if cancel(); err != nil {
			last = err
			continue
		}
		n++
	}
	if n < len(held) && !errors.Is(last, context.Canceled) {
		e.Fail(fmt.Sprintf("A.List ends with an error that wraps %q, or has yielded all %d locks", context.Canceled, len(held)),
			fmt.Sprintf("it yields %d locks, and then %v", n, last))
	}
	releasesAll(e, held)
}

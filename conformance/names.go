package conformance

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/names"
)

func nameChecks() []harness.Check {
	return []harness.Check{{
		Name:   "names/independent",
		Rules:  []string{c8Exact},
		Causes: "a single lock for the whole backend, or a release that frees more than its key.",
		Run:    checkIndependent,
	}, {
		Name:   "names/exact-keys",
		Direct: true,
		Rules:  []string{c8Exact},
		Causes: "the transformation that the failure names, or a similar one: see the table of conformance/internal/names. Usual are " +
			"a column with a collation, a path, a client that escapes, and a long key that is cut or hashed to 32 bits.",
		Run: checkExactKeys,
	}, {
		Name:  "names/any-key",
		Rules: []string{c12AnyName},
		Causes: "a backend that refuses long keys, spaces or control bytes, or one in whose URLs or paths / and .. have a " +
			"meaning: map such names, without collisions.",
		Run: checkAnyKey,
	}, {
		Name:   "names/bookkeeping",
		Rules:  []string{c8Exact},
		Causes: "a fence counter, a queue or a channel of one lock under a name that can be another lock's.",
		Run:    checkBookkeeping,
	}, {
		Name:  "names/exact-tokens",
		Rules: []string{c8Exact},
		Causes: "comparing tokens by prefix (worker-1 owns worker-10's lock), case, length or number; trimming, cleaning or " +
			"unescaping them; a value of several fields that is split at a separator that a token may contain.",
		Run: checkExactTokens,
	}, {
		Name:   "names/any-token",
		Rules:  []string{c12AnyName},
		Causes: "a codec that does not carry every byte, or a limit below 1,024 bytes.",
		Run:    checkAnyToken,
	}}
}

func checkIndependent(e *harness.Env) {
	k1, k2, t1, t2 := e.Key(), e.Key(), e.Token(), e.Token()
	e.A.Takes(k1, t1, harness.Long, "the key is fresh")
	e.B.Takes(k2, t2, harness.Long, "the key is fresh; other keys do not matter")
	e.C.Blocked(k1, "A holds it")
	e.C.Blocked(k2, "B holds it")
	e.B.CannotRelease(k1, t2, "t2 holds another key")
	e.B.Releases(k2, t2, "B holds it")
	e.C.Blocked(k1, "A holds it; B released another key")
	e.C.Takes(k2, t1, harness.Long, "B has released it; t1 may hold other keys as well")
	e.A.Releases(k1, t1, "A holds it")
	e.C.Extends(k2, t1, harness.Long, "C holds it; A released another key with the same token")
}

func checkExactKeys(e *harness.Env) {
	base := e.Label("k", strings.ToLower(harness.RandomKey())+"x")
	pairs := names.Pairs(base)
	all := names.All(pairs)
	for b := range 256 {
		all = append(all, base+string([]byte{byte(b)}))
	}
	slices.Sort(all)
	distinct(e, slices.Compact(all), pairs)
}

// distinct checks that each of all is a lock of its own. Pairs say how two of them may become equal.
func distinct(e *harness.Env, all []string, pairs []names.Pair) {
	rules := make(map[string]string)
	for _, p := range pairs {
		rules[p.B] = fmt.Sprintf("; %s would make it equal to %s", p.Rule, harness.Quote(p.A))
		if rules[p.A] == "" {
			rules[p.A] = fmt.Sprintf("; %s would make it equal to %s", p.Rule, harness.Quote(p.B))
		}
	}
	tokens := make([]string, len(all))
	do := func(op string, i int, client int, ok bool, why string) {
		c, token := e.Clients()[(i+client)%3], tokens[i]
		if !ok {
			token = harness.RandomToken()
		}
		c.Must(c.Quietly(op, all[i], token, asked(op, harness.Long)), ok, why+rules[all[i]])
	}
	e.Note("A, B and C take %d locks, whose names differ slightly", len(all))
	e.Spread(len(all), func(i int) {
		tokens[i] = e.Token()
		do("Acquire", i, 0, true, "only other names are held")
	})
	e.Spread(len(all)/4, func(i int) { do("Acquire", i*4+rand.N(4), 1, false, "it is held") })
	// Releasing every other name leaves the rest.
	for odd := range 2 {
		e.Note("they release every other one of them")
		e.Spread((len(all)+1-odd)/2, func(i int) { do("Release", 2*i+odd, 0, true, "it is held; other names are other locks") })
	}
}

func checkAnyKey(e *harness.Env) {
	// Another user of the backend may hold a name this short, so a refusal is not a failure.
	short := []string{"a", "0", " ", "\n", "\x00", "\x7f", "\x80", "\xff", "{", "}", "*", "%", "/", ".", "..", "{}", "}{",
		"\r\n", "\"", "'", "ü", "日本", "get", "\x00\x00"}
	e.Spread(len(short), func(i int) {
		c, key, token := e.Clients()[i%3], short[i], e.Token()
		r := c.Acquire(key, token, 2*time.Second)
		if r.OK {
			r = c.Release(key, token)
		}
		if r.Err != nil {
			c.Must(r, true, fmt.Sprintf("%q is a name like any other", key))
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	lengths := []int{32, 60, 127, 128, 200, 230, 240, 241, 242, 243, 244, 249, 250, 251, 252, 255, 256, 257, 500, 511, 512,
		513, 800, 1000, 1023, 1024}
	list := make([]string, len(lengths))
	for i, n := range lengths {
		name := []byte(harness.RandomKey())
		for len(name) < n {
			name = append(name, byte(random.UintN(256)))
		}
		list[i] = string(name[len(name)-n:])
		if n >= 36 {
			list[i] = string(name[:n])
		}
	}
	e.Spread(len(list), func(i int) {
		key, token := list[i], e.Token()
		why := fmt.Sprintf("a name of %d bytes is a name like any other", len(key))
		e.A.Takes(key, token, harness.Long, why)
		e.B.Blocked(key, "A holds the lock")
		e.A.Extends(key, token, harness.Long, "A holds the lock")
		e.A.Releases(key, token, "A holds the lock")
		e.B.Takes(key, e.Token(), harness.Long, "A has released it")
	})
}

// relatives returns names that an adapter might use for its own bookkeeping of a lock called key.
func relatives(key string) []string {
	var list []string
	for _, word := range []string{"fence", "fencing", "counter", "line", "queue", "wait", "waiters", "watch", "notify",
		"channel", "released", "lock", "locker", "owner", "token", "ttl", "gc", "tmp"} {
		list = append(list, key+":"+word, word+":"+key, key+"."+word, key+"/"+word, word+"/"+key, "{"+key+"}:"+word,
			word+":{"+key+"}", key+"\x00"+word, "#"+word+":"+key)
	}
	for _, s := range []string{key, "locker:" + key, "locker:" + "locker:" + key} {
		h256, h1, h5 := sha256.Sum256([]byte(s)), sha1.Sum([]byte(s)), md5.Sum([]byte(s))
		for _, h := range [][]byte{h256[:], h1[:], h5[:]} {
			list = append(list, hex.EncodeToString(h), base64.StdEncoding.EncodeToString(h),
				base64.RawURLEncoding.EncodeToString(h), "#"+hex.EncodeToString(h), "sha256:"+hex.EncodeToString(h))
		}
		if s != key {
			list = append(list, s)
		}
	}
	list = append(list, "{"+key+"}", "#"+key, "_"+key, ":"+key, key+":", key+"#", url.QueryEscape(key+" "),
		hex.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte(key)))
	list = slices.DeleteFunc(list, func(s string) bool { return len(s) > names.Limit })
	slices.Sort(list)
	return slices.Compact(list)
}

func checkBookkeeping(e *harness.Env) {
	for _, key := range []string{e.Key(), e.Label("k", harness.RandomKey()+strings.Repeat("x", 300))} {
		token := e.Token()
		e.A.Takes(key, token, harness.Long, "the key is fresh")
		// Make the adapter write whatever it writes beside the lock.
		ctx, cancel := context.WithCancel(e.Ctx)
		var waiter <-chan harness.Call
		if e.Has(harness.NeedsWatch) {
			e.B.WatchContext(ctx, key)
		}
		if e.Has(harness.NeedsWait) {
			waiter = e.B.Waits(ctx, key, e.Token(), harness.Long)
		}
		last := uint64(0)
		fences := func() {
			if e.Has(harness.NeedsFence) {
				if r := e.A.Do("Fence", key, token, 0); !errors.Is(r.Err, errors.ErrUnsupported) {
					last = increases(e.A.Must(r, true, "A holds the lock"), last)
				}
			}
		}
		fences()
		e.Note("these look like bookkeeping of each other")
		distinct(e, relatives(key), nil)
		fences()
		e.B.Blocked(key, "A holds it; locks whose names look like its bookkeeping are other locks")
		e.A.Extends(key, token, harness.Long, "A holds it; locks whose names look like its bookkeeping are other locks")
		cancel()
		if waiter != nil {
			<-waiter
		}
		e.A.Releases(key, token, "A holds it")
	}
}

func checkExactTokens(e *harness.Env) {
	t := strings.ToLower(e.Token()) + "x"
	pairs := names.Pairs(t)
	for _, special := range []string{"*", "%", "nil", "null", "0", "true", "\x00", "{}"} {
		pairs = append(pairs, names.Pair{Rule: "a token that means something else", A: t, B: special})
	}
	e.Note("%d locks are held, for each of which a slightly different token tries all that a holder may do", 2*len(pairs))
	e.Spread(2*len(pairs), func(i int) {
		p := pairs[i/2]
		holder, other := p.A, p.B
		if i%2 == 1 {
			holder, other = other, holder
		}
		key := e.Key()
		why := fmt.Sprintf("%s holds the lock, and %s is another token (%s)", harness.Quote(holder), harness.Quote(other), p.Rule)
		do := func(op, token string, ok bool) {
			e.A.Must(e.A.Quietly(op, key, token, asked(op, harness.Long)), ok, why)
		}
		do("Acquire", holder, true)
		if i%2 == 0 { // what is only asked here is symmetrical, or wrong in Release as well
			do("Acquire", other, false)
			do("Extend", other, false)
		}
		do("Release", other, false)
		do("Release", holder, true)
	})
}

func checkAnyToken(e *harness.Env) {
	tokens := []string{"a", "0", " ", "\n", "\r\n", "\x00", "\xff", ":", "{}", "日本", "1700000000", "1700000000000",
		"1700000000000:x", strings.Repeat("\x00", names.Limit), strings.Repeat("\xff", names.Limit), strings.Repeat("x", names.Limit)}
	random := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 16, 100, 255, 256, 257, 1000} {
		token := make([]byte, n)
		for i := range token {
			token[i] = byte(random.UintN(256))
		}
		tokens = append(tokens, string(token))
	}
	e.Spread(len(tokens), func(i int) {
		key, token := e.Key(), tokens[i]
		why := harness.Quote(token) + " is a token like any other"
		e.A.Takes(key, token, harness.Long, why)
		e.B.Blocked(key, "A holds the lock")
		e.A.Extends(key, token, harness.Long, harness.Quote(token)+" holds the lock")
		e.A.Takes(key, token, harness.Long, harness.Quote(token)+" holds the lock already")
		e.A.Releases(key, token, harness.Quote(token)+" holds the lock")
		e.B.Takes(key, token, harness.Long, "A has released it")
	})
}

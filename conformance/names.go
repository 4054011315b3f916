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
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// nameLimit is the length of the longest key and token.
const nameLimit = 1024

func nameChecks() []harness.Check {
	return []harness.Check{{
		Name:   "names/independent",
		Rules:  []string{c8Exact},
		Causes: "a single lock for the whole backend, or a release that frees more than its key.",
		Run:    checkIndependent,
	}, {
		Name:  "names/exact-keys",
		Rules: []string{c8Exact},
		Causes: "keys that are folded in case, trimmed, truncated (at 250 bytes for memcached, at a NUL), normalized, cleaned as " +
			"paths (a//b, a/./b, a/), unescaped (%41), read as numbers (1, 01, 1.0, 1e0), or hashed to too few bits.",
		Run: checkExactKeys,
	}, {
		Name:   "names/hash-collisions",
		Rules:  []string{c8Exact},
		Causes: "a 32-bit hash (CRC-32, FNV-1a, …) used as the key: with some ten thousand names, two collide.",
		Run:    checkHashCollisions,
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

// variations returns names that differ slightly from base and from each other. The last byte of
// base is a lower-case letter.
func variations(base string) []string {
	lengthy := base + strings.Repeat("l", nameLimit-len(base)-1)
	names := []string{
		base, strings.ToUpper(base), strings.ToUpper(base[:1]) + base[1:],
		" " + base, "\n" + base, base + "\r\n", base + "  ", base + "\x00x", base + "\x00y",
		base + "é", base + "e\u0301", base + "\ufeff", base + "\u017f", base + "\u212a", // long s, Kelvin sign
		base + "{x}", "{" + base + "}", "{" + base + "}x", base + "{}", base + "}x{",
		base + "%20", base + "+", base + "//", base + "/.", base + "/..", base + `\x`, base + "*x", base + "[x]",
		base + "\xff\xfe", base + "\xff\xff", base + "\ufffd",
		lengthy + "a", lengthy + "b", lengthy + "A", lengthy, lengthy[:nameLimit-2], "a" + lengthy, "b" + lengthy,
	}
	for _, n := range []int{249, 250, 251, 255, 256, 512} { // limits of backends, plus one byte
		names = append(names, lengthy[:n]+"1", lengthy[:n]+"2")
	}
	for b := range 256 {
		if c := byte(b); c != '+' {
			names = append(names, base+string([]byte{c}))
		}
	}
	names = append(names, foldings(base)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// foldings returns names that are equal when read as paths, URLs or markup, or compared by a
// collation: repeated separators, empty segments, escapes, invisible characters.
func foldings(base string) []string {
	var names []string
	for _, sep := range []string{":", "/", ".", "-", "_", "|", ",", ";", "#", "@", "=", "&", "~", " ", `\`} {
		for _, n := range []int{1, 2, 3} {
			many := strings.Repeat(sep, n)
			names = append(names, base+many+"b", base+many, many+base, base+sep+"b"+many+"c")
		}
	}
	return append(names,
		base+"/./b", base+"/b/.", base+"/b/..", base+"/c/../b", base+"/../"+base, "./"+base, "../"+base, "/./"+base, base+"/b/",
		base+"%41", base+"%61", base+"A", base+"a", base+"%2541", base+"%2Fb", base+"%2fb", base+"%3Ab", base+"%00", base+"%20b",
		base+"+b", base+"%2Bb", base+"%", base+"%zz", base+`\u0041`, base+`\x41`, base+`\101`, base+`\n`, base+`\\`,
		base+"&amp;b", base+"&b", base+"&#65;", base+"=41", base+"${b}", base+"$b", `"`+base+`"`, "'"+base+"'", "`"+base+"`",
		base+"?b", base+"?", base+"?b=1", base+"#b", base+";b=1",
		base+"\u00a0", base+"\u200b", base+"\u200bb", base+"b\u00ad", base+"b", base+"\u2044b", base+"ss", base+"ß", base+"\u0131", base+"i",
		base+"I", base+"\uff21", base+"ﬁ", base+"fi", base+"µ", base+"μ",
		base+"1", base+"01", base+"1.0", base+"+1", base+"1e0", "\ufeff"+base, base+"\tb", base+"  b", base+"\n\nb")
}

// numbers returns names that are the same few numbers in different notations, or when rounded to
// the 53 bits of a float. The numbers are random, so that other runs on the same backend do not use
// them.
func numbers() []string {
	n := 1e17 + rand.Uint64N(9e17) // of 18 digits
	s := strconv.FormatUint(n, 10)
	round := strconv.FormatUint(1e11+rand.Uint64N(9e11)|1, 10) // of 12 digits, before some zeros
	names := []string{
		s, "0" + s, "00" + s, "+" + s, "-" + s, "-0" + s, s + ".", s + ".0", s + ".00", s + "e0", s + "E0", s + "e+0",
		s[:1] + "." + s[1:] + "e17", s[:1] + "." + s[1:] + "E+17", " " + s, s + " ", s + "L", s + "n",
		strconv.FormatUint(n^1, 10), strconv.FormatUint(n^2, 10),
		fmt.Sprintf("0x%x", n), fmt.Sprintf("0x%X", n), fmt.Sprintf("0X%x", n), fmt.Sprintf("%x", n), fmt.Sprintf("0x0%x", n),
		fmt.Sprintf("0o%o", n), fmt.Sprintf("0%o", n), fmt.Sprintf("0b%b", n),
		s[:3] + "_" + s[3:], s[:3] + "," + s[3:],
		round + "000", round + "e3", round + "E3", round + "000.0", round + "0e2", "0" + round + "e3",
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func checkExactKeys(e *harness.Env) {
	base := e.Label("k", strings.ToLower(harness.RandomKey())+"z")
	names := append(variations(base), numbers()...)
	distinct(e, names, "only other names, which differ slightly, are held")
}

// distinct checks that each of names is a lock of its own.
func distinct(e *harness.Env, names []string, why string) {
	tokens := make([]string, len(names))
	e.Spread(len(names), func(i int) {
		tokens[i] = e.Token()
		e.Clients()[i%3].Takes(names[i], tokens[i], harness.Long, why)
	})
	e.Spread(len(names)/4, func(i int) {
		i = i*4 + rand.N(4)
		e.Clients()[(i+1)%3].Blocked(names[i], "it is held")
	})
	// Releasing every other name leaves the rest.
	e.Spread(len(names)/2, func(i int) {
		e.Clients()[2*i%3].Releases(names[2*i], tokens[2*i], "it is held; names that differ slightly are other locks")
	})
	e.Spread(len(names)/2, func(i int) {
		i = 2*i + 1
		e.Clients()[i%3].Releases(names[i], tokens[i], "it is held; the names that were released differ slightly")
	})
}

// checkHashCollisions takes pairs of names that collide in some 32-bit hash.
func checkHashCollisions(e *harness.Env) {
	base := e.Key()
	names := []string{
		// These collide with any prefix: CRC-32 (IEEE, Castagnoli), h*31+c, h*33+c, Adler-32.
		base + "d69b648", base + "b01de8d", base + "318a6c8", base + "90b508f",
		base + "Aa", base + "BB", base + "Ab", base + "BA", base + "aca", base + "bab",
	}
	for _, twin := range twins() { // still collide with the same text after them
		names = append(names, twin+base)
	}
	slices.Sort(names)
	distinct(e, slices.Compact(names), "only another name is held, which collides with it in some 32-bit hash")
}

// twins returns the pairs that collide in FNV, which take long to find.
var twins = sync.OnceValue(func() (names []string) {
	for _, prefix := range []string{"", "locker:"} {
		for _, multiplyFirst := range []bool{false, true} {
			names = append(names, fnvTwins(prefix, "conformance/", multiplyFirst)...)
		}
	}
	return names
})

// fnvTwins returns two names that begin with base and, with prefix before them, collide in FNV-1a,
// or in FNV-1, which multiplies first. Among some hundred thousand names there is such a pair.
func fnvTwins(prefix, base string, multiplyFirst bool) []string {
	add := func(h uint32, s string) uint32 {
		for i := range len(s) {
			if multiplyFirst {
				h = h*16777619 ^ uint32(s[i])
			} else {
				h = (h ^ uint32(s[i])) * 16777619
			}
		}
		return h
	}
	// FNV keeps short names that differ in few digits apart.
	suffix := func(i uint64) string { return strconv.FormatUint(i*0x9e3779b97f4a7c15, 36) }
	begin := add(2166136261, prefix+base)
	const size = 1 << 19
	seen := make([]uint64, size) // a hash table of hash and i, each in its hash's place or after it
	for i := uint64(1); i < size/2; i++ {
		h := add(begin, suffix(i))
		at := h % size
		for ; seen[at] != 0; at = (at + 1) % size {
			if uint32(seen[at]>>32) == h {
				return []string{base + suffix(seen[at]&math.MaxUint32), base + suffix(i)}
			}
		}
		seen[at] = uint64(h)<<32 | i
	}
	return nil
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
	names := make([]string, len(lengths))
	for i, n := range lengths {
		name := []byte(harness.RandomKey())
		for len(name) < n {
			name = append(name, byte(random.UintN(256)))
		}
		names[i] = string(name[len(name)-n:])
		if n >= 36 {
			names[i] = string(name[:n])
		}
	}
	e.Spread(len(names), func(i int) {
		key, token := names[i], e.Token()
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
	var names []string
	for _, word := range []string{"fence", "fencing", "counter", "line", "queue", "wait", "waiters", "watch", "notify",
		"channel", "released", "lock", "locker", "owner", "token", "ttl", "gc", "tmp"} {
		names = append(names, key+":"+word, word+":"+key, key+"."+word, key+"/"+word, word+"/"+key, "{"+key+"}:"+word,
			word+":{"+key+"}", key+"\x00"+word, "#"+word+":"+key)
	}
	for _, s := range []string{key, "locker:" + key, "locker:" + "locker:" + key} {
		h256, h1, h5 := sha256.Sum256([]byte(s)), sha1.Sum([]byte(s)), md5.Sum([]byte(s))
		for _, h := range [][]byte{h256[:], h1[:], h5[:]} {
			names = append(names, hex.EncodeToString(h), base64.StdEncoding.EncodeToString(h),
				base64.RawURLEncoding.EncodeToString(h), "#"+hex.EncodeToString(h), "sha256:"+hex.EncodeToString(h))
		}
		if s != key {
			names = append(names, s)
		}
	}
	names = append(names, "{"+key+"}", "#"+key, "_"+key, ":"+key, key+":", key+"#", url.QueryEscape(key+" "),
		hex.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte(key)))
	names = slices.DeleteFunc(names, func(s string) bool { return len(s) > nameLimit })
	slices.Sort(names)
	return slices.Compact(names)
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
		distinct(e, relatives(key), "only names that look like bookkeeping of each other are held")
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
	t := "worker-1z" + e.Token()
	lengthy := strings.Repeat("t", nameLimit-1)
	pairs := [][2]string{
		{t, t + "0"}, {t, t[:len(t)-1]}, {t, t[1:]}, {t, strings.ToUpper(t)}, {t, t + " "}, {t, t + "\n"}, {t, t + "\x00"},
		{t, " " + t}, {t, t + "\x00x"}, {t, "0" + t}, {"1" + t, "01" + t},
		{t, t + ":" + t}, {t, ":" + t}, {t, t + ":"}, {t, t + "|1"}, {t, t + ",1"}, {t, "1700000000000:" + t}, {t, t + ":1700000000000"},
		{"1", "01"}, {"1", "1.0"}, {"1", "+1"}, {"1", "1e0"}, {"100", "1e2"}, {"0x10", "16"},
		{"9007199254740993", "9007199254740992"},
		{t + "é", t + "e\u0301"}, {t + "\xff", t + "\xfe"}, {t + "\xff", t + "\ufffd"},
		{lengthy + "a", lengthy + "b"}, {lengthy + "a", lengthy}, {"a" + lengthy, "b" + lengthy}, {lengthy[:250] + "a", lengthy[:250] + "b"},
		{t + "::x", t + ":x"}, {t + "//x", t + "/x"}, {t + "  x", t + " x"}, {t + "/", t}, {"/" + t, t}, {t, t + "."}, {t + "/./x", t + "/x"},
		{t + "/y/../x", t + "/x"}, {t + "%41", t + "A"}, {t + "%2541", t + "%41"}, {t + "+x", t + " x"}, {t + `\x41`, t + "A"}, {t + "&amp;", t + "&"},
		{t + "\u200b", t}, {t, `"` + t + `"`}, {t + "ss", t + "ß"},
		{t, "*"}, {t, "%"}, {t, "nil"}, {t, "null"}, {t, "0"}, {t, "true"}, {t, "\x00"},
	}
	e.Spread(2*len(pairs), func(i int) {
		holder, other := pairs[i/2][i%2], pairs[i/2][1-i%2]
		key := e.Key()
		e.A.Takes(key, holder, harness.Long, "the key is fresh")
		why := fmt.Sprintf("%s holds the lock, and %s is another token", harness.Quote(holder), harness.Quote(other))
		e.A.BlockedAs(key, other, why)
		e.A.CannotExtend(key, other, harness.Long, why)
		e.A.CannotRelease(key, other, why)
		e.A.Releases(key, holder, harness.Quote(holder)+" holds the lock")
	})
}

func checkAnyToken(e *harness.Env) {
	tokens := []string{"a", "0", " ", "\n", "\r\n", "\x00", "\xff", ":", "{}", "日本", "1700000000", "1700000000000",
		"1700000000000:x", strings.Repeat("\x00", nameLimit), strings.Repeat("\xff", nameLimit), strings.Repeat("x", nameLimit)}
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

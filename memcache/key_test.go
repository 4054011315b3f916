package memcache

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestItemKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 243) // with "locker:" exactly as long as memcached takes
	hash := func(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }
	for _, test := range []struct{ prefix, name, want string }{
		{"locker:", "invoice/42", "locker:invoice/42"},
		{"locker:", long, "locker:" + long},
		{"locker:", long + "x", "#" + hash("locker:"+long+"x")},
		{"locker:", "a b", "#" + hash("locker:a b")},
		{"locker:", "a\n", "#" + hash("locker:a\n")},
		{"locker:", "\x7f", "#" + hash("locker:\x7f")},
		{"locker:", "é", "locker:é"},
		{"locker:", "\xff\xfe", "locker:\xff\xfe"},
		{"locker:", "a\u3000b", "#" + hash("locker:a\u3000b")},
		{"#", "a", "#a"},
		{"#", "a b", "%" + hash("#a b")},
		{"#sha256:", "", "#sha256:"},
		{"two words:", "a", "#" + hash("two words:a")},
		{strings.Repeat("p", 250), "a", "#" + hash(strings.Repeat("p", 250)+"a")},
	} {
		assert.Equal(t, test.want, itemKey(test.prefix, test.name), "%q %q", test.prefix, test.name)
	}
}

// FuzzItemKey compares two names under one prefix: they share a key only if they are equal,
// memcached and its client accept every key, and no plain name has the key of a hash.
func FuzzItemKey(f *testing.F) {
	f.Add("locker:", "a", "b")
	f.Add("#", "a b", "sha256:"+strings.Repeat("0", 64))
	f.Add("%", strings.Repeat("x", 250), "sha256:")
	f.Add("\xff", "\u00a0", "\xa0")
	f.Add("\xe3\x80", "\x80", "a") // together a space of Unicode
	f.Add(strings.Repeat("p", 249), "a", "aa")
	f.Add("two words", "", "\x7f")
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		if prefix == "" { // New sees to that
			return
		}
		ka, kb := itemKey(prefix, a), itemKey(prefix, b)
		if (a == b) != (ka == kb) {
			t.Fatalf("%q and %q with prefix %q: %q and %q", a, b, prefix, ka, kb)
		}
		for _, k := range []string{ka, kb} {
			if k == "" || len(k) > 250 || strings.ContainsFunc(k, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
				t.Fatalf("illegal key %q", k)
			}
			// As the client reads a reply.
			var read string
			var flags, size, cas int
			_, err := fmt.Sscanf("VALUE "+k+" 1 2 3\r\n", "VALUE %s %d %d %d\r\n", &read, &flags, &size, &cas)
			if err != nil || cas != 3 {
				t.Fatalf("the client cannot read a reply about %q: %v", k, err)
			}
		}
		if ka != prefix+a && ka[0] == prefix[0] {
			t.Fatalf("the hash %q can be a plain name's key with prefix %q", ka, prefix)
		}
		// A name made to look like the hash of another.
		if forged := itemKey(prefix, strings.TrimPrefix(ka, prefix)); forged == ka && ka != prefix+a {
			t.Fatalf("%q is also the key of a name that looks like it", ka)
		}
	})
}

// Names at the limits of what memcached and its client accept, with every byte, are distinct locks
// on a real server.
func TestNames(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	ctx := context.Background()
	for _, prefix := range []string{"", "#", "two words\n", strings.Repeat("p", 300), "é\xff"} {
		client := newClient(t, srv.Addr)
		l := New(client, WithPrefix(prefix))
		names := []string{"a", "A", "a ", " a", "a\n", "a\r\nflush_all\r\n", "a\x00", "a\u00a0", "a\u2028", "a\u3000",
			"é", "e\u0301", "{a}", "%s", "sha256:" + strings.Repeat("0", 64)}
		for _, n := range []int{242, 243, 244, 249, 250, 251, 1024} {
			names = append(names, strings.Repeat("x", n), strings.Repeat("x", n-1)+"y", strings.Repeat("x", n-1)+" ")
		}
		for c := range 256 {
			names = append(names, string([]byte{byte(c)})+" first", "byte"+string([]byte{byte(c), 'x'}))
		}
		for i, name := range names {
			ok, err := l.Acquire(ctx, name, fmt.Sprint("token ", i), time.Minute)
			require.NoError(t, err, "%q %q", prefix, name)
			require.True(t, ok, "%q %q is another name's lock", prefix, name)
		}
		for i, name := range names {
			ok, err := l.Acquire(ctx, name, "another", time.Minute)
			require.NoError(t, err, "%q %q", prefix, name)
			require.False(t, ok, "%q %q", prefix, name)
			ok, err = l.Extend(ctx, name, fmt.Sprint("token ", i), time.Minute)
			require.NoError(t, err, "%q %q", prefix, name)
			require.True(t, ok, "%q %q", prefix, name)
			ok, err = l.Release(ctx, name, fmt.Sprint("token ", i))
			require.NoError(t, err, "%q %q", prefix, name)
			require.True(t, ok, "%q %q", prefix, name)
		}
	}
}

// Tokens are compared byte for byte, and may contain any bytes.
func TestTokens(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	l := New(newClient(t, srv.Addr))
	ctx := context.Background()
	long := strings.Repeat("x", 1023)
	tokens := []string{"a", "ab", "A", "a ", "a\r\n", "a\r\nEND\r\n", "\x00", "\x00\x00", "\xff", "0", "1",
		long + "x", long + "y", long}
	for _, holder := range tokens {
		ok, err := l.Acquire(ctx, "k", holder, time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		for _, token := range tokens {
			if token == holder {
				continue
			}
			for name, op := range operations(l, "k", token) {
				ok, err := op(ctx)
				require.NoError(t, err, name)
				require.False(t, ok, "%s by %q, held by %q", name, token, holder)
			}
		}
		ok, err = l.Extend(ctx, "k", holder, time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.Release(ctx, "k", holder)
		require.NoError(t, err)
		require.True(t, ok)
	}
}

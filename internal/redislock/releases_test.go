package redislock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// shelf is a database with locks.
type shelf struct {
	*redis.Client
	locks []redislock.Keys
}

// release makes one release and returns the reply, or the first word of the error.
func (s shelf) release(ctx context.Context, lock int, token string) any {
	keys := s.locks[lock]
	return summary(s.Eval(ctx, redislock.Release.Text, []string{keys.Lock, keys.Queue}, token).Result())
}

// releaseAll makes several releases at once.
func (s shelf) releaseAll(tb testing.TB, locks []int, tokens []any) (replies []any) {
	tb.Helper()
	var keys, queues []string
	for _, i := range locks {
		keys, queues = append(keys, s.locks[i].Lock), append(queues, s.locks[i].Queue)
	}
	list, err := s.Eval(tb.Context(), redislock.Releases.Text, append(keys, queues...), tokens...).Slice()
	require.NoError(tb, err)
	for _, reply := range list {
		err, _ := reply.(error)
		replies = append(replies, summary(reply, err))
	}
	return replies
}

func summary(reply any, err error) any {
	if err != nil {
		word, _, _ := strings.Cut(err.Error(), " ")
		return word
	}
	return reply
}

// state returns the values of the locks, and the entries and marks in their queues.
func (s shelf) state(ctx context.Context) (all []string) {
	for _, keys := range s.locks {
		all = append(all, keys.Lock+" "+s.Get(ctx, keys.Lock).String())
		queue := s.ZRangeByScoreWithScores(ctx, keys.Queue, &redis.ZRangeBy{Min: "0", Max: "+inf"}).Val()
		all = append(all, fmt.Sprint(s.Type(ctx, keys.Queue).Val(), queue))
	}
	return all
}

// Releases does what Release does for one lock after the other.
func TestReleases(t *testing.T) {
	t.Parallel()
	client, ctx := start(t), t.Context()
	other := redis.NewClient(&redis.Options{Addr: client.Options().Addr, DB: 1})
	t.Cleanup(func() { _ = other.Close() })
	inbox := client.Subscribe(ctx, "!wait:alive")
	t.Cleanup(func() { _ = inbox.Close() })
	_, err := inbox.Receive(ctx)
	require.NoError(t, err)
	watch := client.PSubscribe(ctx, "locker:*", "end")
	t.Cleanup(func() { _ = watch.Close() })
	_, err = watch.Receive(ctx)
	require.NoError(t, err)
	told := func() map[string]int { // how often the watchers of each lock were woken
		n := make(map[string]int)
		require.NoError(t, client.Publish(ctx, "end", "").Err())
		for {
			m, err := watch.ReceiveMessage(ctx)
			require.NoError(t, err)
			if m.Channel == "end" {
				return n
			}
			n[m.Channel]++
		}
	}
	const count = 6
	one, all := shelf{Client: client}, shelf{Client: other}
	for i := range count {
		keys := redislock.NewNamespace("", true).Keys(fmt.Sprint(i))
		one.locks, all.locks = append(one.locks, keys), append(all.locks, keys)
	}
	seen := make(map[any]int)
	for round := range 300 {
		require.NoError(t, client.FlushAll(ctx).Err())
		told()
		var locks []int
		var tokens []any
		for i, keys := range one.locks {
			value, queue := rand.IntN(6), rand.IntN(8)
			for _, s := range []shelf{one, all} {
				switch value {
				case 0:
				case 1:
					require.NoError(t, s.HSet(ctx, keys.Lock, "f", "v").Err())
				case 2:
					require.NoError(t, s.Set(ctx, keys.Lock, "1700000000", 0).Err())
				default:
					require.NoError(t, s.Set(ctx, keys.Lock, fmt.Sprint("token", value), 0).Err())
				}
				var entries []redis.Z
				switch queue {
				case 0:
					require.NoError(t, s.Set(ctx, keys.Queue, "not a queue", 0).Err())
				case 1:
					entries = []redis.Z{{Score: 0, Member: "nonce"}}
				case 2:
					entries = []redis.Z{{Score: 1, Member: entry("!wait:alive", 3)}, {Score: 2, Member: entry("!wait:alive", 4)}}
				case 3:
					entries = []redis.Z{{Score: 1, Member: entry("!wait:dead", 5)}, {Score: 2, Member: entry("!wait:alive", 4)}}
				case 4:
					entries = []redis.Z{{Score: 1, Member: entry("!wait:dead", 5)}}
				}
				if entries != nil {
					require.NoError(t, s.ZAdd(ctx, keys.Queue, entries...).Err())
				}
			}
			for range 1 + rand.IntN(3) {
				locks, tokens = append(locks, i), append(tokens, fmt.Sprint("token", 3+rand.IntN(3)))
			}
		}
		rand.Shuffle(len(locks), func(i, j int) {
			locks[i], locks[j], tokens[i], tokens[j] = locks[j], locks[i], tokens[j], tokens[i]
		})
		before := one.state(ctx)
		require.Equal(t, before, all.state(ctx))
		var want []any
		for i, lock := range locks {
			want = append(want, one.release(ctx, lock, tokens[i].(string)))
		}
		wantTold := told()
		got := all.releaseAll(t, locks, tokens)
		require.Equal(t, want, got, "round %d: %v of %v, before: %q", round, tokens, locks, before)
		require.Equal(t, one.state(ctx), all.state(ctx), "round %d: %v of %v, before: %q", round, tokens, locks, before)
		require.Equal(t, wantTold, told())
		for _, reply := range got {
			seen[reply]++
		}
	}
	for _, reply := range []any{int64(0), int64(1), int64(21), "WRONGTYPE", "FOREIGN"} {
		require.Positive(t, seen[reply], "%v: %v", reply, seen)
	}
}

// Together, the releases of one script drop no more of the dead than a single one may.
func TestWorkOfReleasesIsBounded(t *testing.T) {
	t.Parallel()
	const locks, dead = 4, 1000
	s, ctx := shelf{Client: start(t)}, t.Context()
	var numbers []int
	var tokens []any
	for i := range locks {
		keys := redislock.NewNamespace("", true).Keys(fmt.Sprint(i))
		s.locks = append(s.locks, keys)
		require.NoError(t, s.Set(ctx, keys.Lock, "holder", 0).Err())
		var entries []redis.Z
		for k := range dead {
			entries = append(entries, redis.Z{Score: float64(k + 1), Member: entry("!wait:dead", k)})
		}
		require.NoError(t, s.ZAdd(ctx, keys.Queue, entries...).Err())
		numbers, tokens = append(numbers, i), append(tokens, "holder")
	}
	for _, reply := range s.releaseAll(t, numbers, tokens) {
		freed, err := redislock.ParseFreed(reply)
		require.NoError(t, err)
		require.Equal(t, redislock.Freed{Released: true, SweepIn: 0}, freed, "there is more to drop")
	}
	for _, keys := range s.locks {
		require.EqualValues(t, dead-1024/locks, s.ZCard(ctx, keys.Queue).Val())
	}
}

// Nor do they ask more processes whether they are alive, if the locks were claimed by none.
func TestQuestionsOfReleasesAreBounded(t *testing.T) {
	t.Parallel()
	const locks, waiters = 4, 300
	s, ctx := shelf{Client: start(t)}, t.Context()
	var numbers []int
	var tokens []any
	now := float64(time.Now().UnixMilli())
	for i := range locks {
		keys := redislock.NewNamespace("", true).Keys(fmt.Sprint(i))
		s.locks = append(s.locks, keys)
		entries := []redis.Z{{Score: 0.5, Member: "nonce"}}
		for k := range waiters {
			process := fmt.Sprint("!wait:", k)
			waiter := fmt.Sprintf("%s nonce%d 1000 60000 token%d", process, k, k)
			entries = append(entries, redis.Z{Score: float64(k + 1), Member: waiter}, redis.Z{Score: -now, Member: process})
		}
		require.NoError(t, s.ZAdd(ctx, keys.Queue, entries...).Err())
		numbers, tokens = append(numbers, i), append(tokens, "holder")
	}
	s.releaseAll(t, numbers, tokens)
	for _, keys := range s.locks {
		var asked int
		for _, member := range s.ZRange(ctx, keys.Queue, 0, -1).Val() {
			if strings.HasPrefix(member, "?") {
				asked++
			}
		}
		require.Equal(t, 1+256/locks, asked, "the one that is to claim the lock, and others")
	}
}

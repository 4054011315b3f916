package etcd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// entry is where a token stands among those that hold a lock or wait for it. The value of its key
// begins with one of these words, followed by the ttl of its lease in seconds.
type entry struct {
	lock  string // what the keys of all entries of the lock begin with
	key   string
	token string
}

const (
	holds = "held "
	waits = "wait "
)

func (l *Locker) entry(key, token string) entry {
	lock := l.lockKey(key)
	return entry{lock: lock, key: lock + escape(token), token: token}
}

// lockKey returns what the keys of all entries of a lock begin with. It ends with the only slash
// after the prefix, so none of these begins with another.
func (l *Locker) lockKey(key string) string { return l.prefix + escape(key) + "/" }

// escape replaces slashes, percent signs and all bytes but printable ASCII by a percent sign and
// two hexadecimal digits.
func escape(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c > ' ' && c < 0x7f && c != '/' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescape reverses escape. It reports false for what escape does not return.
func unescape(s string) (name string, ok bool) {
	var b []byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) {
				return "", false
			}
			v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c = byte(v)
			i += 2
		}
		b = append(b, c)
	}
	name = string(b)
	return name, name != "" && escape(name) == s
}

var errForeign = errors.New("the key is not an entry of this package")

// state is what an entry says.
type state struct {
	entry
	held    bool  // the token holds the lock; otherwise it waits, and may be the first to do so
	seconds int64 // the ttl of its lease
	lease   clientv3.LeaseID
	created int64 // revision
	changed int64 // revision
}

// read returns what an entry of a lock says, or an error if it is not one of this package.
func read(lock string, kv *mvccpb.KeyValue) (state, error) {
	s := state{entry: entry{lock: lock, key: string(kv.Key)}, lease: clientv3.LeaseID(kv.Lease),
		created: kv.CreateRevision, changed: kv.ModRevision}
	escaped, ok := strings.CutPrefix(s.key, lock)
	if ok {
		s.token, ok = unescape(escaped)
	}
	seconds, held := strings.CutPrefix(string(kv.Value), holds)
	if s.held = held; !held {
		var waiting bool
		seconds, waiting = strings.CutPrefix(seconds, waits)
		ok = ok && waiting
	}
	var err error
	s.seconds, err = strconv.ParseInt(seconds, 10, 64)
	if !ok || err != nil || s.seconds <= 0 || s.lease == clientv3.NoLease {
		return state{}, fmt.Errorf("%w: %.100q is %.32q with lease %x", errForeign,
			kv.Key, kv.Value, kv.Lease)
	}
	return s, nil
}

// readOne is read for the answer to a request for at most one entry. Without one it returns the
// zero state.
func readOne(lock string, kvs []*mvccpb.KeyValue) (state, error) {
	if len(kvs) == 0 {
		return state{}, nil
	}
	return read(lock, kvs[0])
}

// ranged returns the entries that step number i of a transaction got.
func ranged(resp *clientv3.TxnResponse, i int) []*mvccpb.KeyValue {
	return resp.Responses[i].GetResponseRange().Kvs
}

// The conditions of transactions.

// isHeld means that the token holds the lock.
func (e entry) isHeld() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(e.key), ">", holds+"0\xff"), // a number that begins with 1,
		clientv3.Compare(clientv3.Value(e.key), "<", holds+":"),     // or up to 9
	}
}

// isFree means that the lock has no entries.
func (e entry) isFree() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(e.lock), "=", 0).WithPrefix()
}

// noHolder means that all entries of the lock wait. The word of a holder is less.
func (e entry) noHolder() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(e.lock), ">", waits).WithPrefix()
}

// isFirst means that the entry was created at that revision, and all others after it.
func (e entry) isFirst(created int64) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", created),
		clientv3.Compare(clientv3.CreateRevision(e.lock), ">", created-1).WithPrefix(),
	}
}

// The steps of transactions.

func (e entry) get() clientv3.Op { return clientv3.OpGet(e.key) }

// getLast gets the entry that was created last.
func (e entry) getLast() clientv3.Op {
	return clientv3.OpGet(e.lock, append(clientv3.WithLastCreate(), clientv3.WithPrefix())...)
}

// getBefore gets the last of the entries that were created before that revision.
func (e entry) getBefore(created int64) clientv3.Op {
	return clientv3.OpGet(e.lock, append(clientv3.WithLastCreate(), clientv3.WithPrefix(),
		clientv3.WithMaxCreateRev(created-1))...)
}

// getHolder gets the entry that holds the lock, if there is one, and otherwise another. It counts
// all.
func (e entry) getHolder() clientv3.Op {
	return clientv3.OpGet(e.lock, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend),
		clientv3.WithLimit(1))
}

// put writes the entry, with a lease of so many seconds.
func (e entry) put(word string, seconds int64, lease clientv3.LeaseID) clientv3.Op {
	return clientv3.OpPut(e.key, word+strconv.FormatInt(seconds, 10), clientv3.WithLease(lease))
}

// touch writes the entry again as it is, which gives it another revision.
func (e entry) touch() clientv3.Op {
	return clientv3.OpPut(e.key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
}

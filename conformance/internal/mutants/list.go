package mutants

import (
	"context"
	"errors"
	"iter"
	"path"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// lists replaces what List yields.
func (f *Fake) lists(list func(ctx context.Context, prefix string, yield func(locker.Info, error) bool)) {
	f.OnList = func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
		return func(yield func(locker.Info, error) bool) { list(ctx, prefix, yield) }
	}
}

// omits leaves locks out of what List yields.
func (f *Fake) omits(leaveOut func(prefix string, n int, info locker.Info) bool) {
	list := f.OnList
	f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
		n := 0
		for info, err := range list(ctx, prefix) {
			n++
			if err == nil && leaveOut(prefix, n, info) {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	})
}

func listMutants() []Mutant {
	mutant := func(name string, alter func(f *Fake), must ...string) Mutant {
		return Mutant{Name: name, Only: []string{"list/*"}, Must: must, May: []string{"list/*"}, Alter: alter}
	}
	return []Mutant{
		mutant("list: the prefix is a pattern", func(f *Fake) {
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range pages(ctx, func() []locker.Info { return f.list("") }) {
					if ok, _ := path.Match(strings.ReplaceAll(prefix, "/", "|")+"*", strings.ReplaceAll(info.Key, "/", "|")); !ok && err == nil {
						continue
					}
					if !yield(info, err) {
						return
					}
				}
			})
		}, "list/prefix"),
		mutant("list: the prefix is a pattern of SQL", func(f *Fake) {
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range pages(ctx, func() []locker.Info { return f.list("") }) {
					if err == nil && !like(prefix, info.Key) {
						continue
					}
					if !yield(info, err) {
						return
					}
				}
			})
		}, "list/prefix"),
		mutant("list: not the key that is the prefix", func(f *Fake) {
			f.omits(func(prefix string, _ int, info locker.Info) bool { return info.Key == prefix })
		}, "list/prefix"),
		mutant("list: the prefix ends with a separator", func(f *Fake) {
			f.omits(func(prefix string, _ int, info locker.Info) bool {
				rest := strings.TrimPrefix(info.Key, prefix)
				return rest != "" && rest[0] != '/' && !strings.HasSuffix(prefix, "/")
			})
		}, "list/prefix", "list/all"),
		mutant("list: an empty prefix lists nothing", func(f *Fake) {
			f.omits(func(prefix string, _ int, _ locker.Info) bool { return prefix == "" })
		}, "list/all"),
		mutant("list: locks that are free", func(f *Fake) {
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				f.mu.Lock()
				var all []locker.Info
				for key, it := range f.items {
					if strings.HasPrefix(key, prefix) {
						all = append(all, locker.Info{Key: key, Token: it.token, TTL: time.Until(it.expires), Waiters: -1})
					}
				}
				f.mu.Unlock()
				for _, info := range all {
					if !yield(info, nil) {
						return
					}
				}
				if err := ctx.Err(); err != nil {
					yield(locker.Info{}, err)
				}
			})
			f.Releases(func(key, token string) bool { return f.store.extend(key, token, -time.Second) })
		}, "list/prefix", "list/many"),
		mutant("list: the first page only", func(f *Fake) {
			f.omits(func(_ string, n int, _ locker.Info) bool { return n > pageSize })
		}, "list/many", "list/concurrent"),
		mutant("list: the first two thousand only", func(f *Fake) {
			f.omits(func(_ string, n int, _ locker.Info) bool { return n > 2000 })
		}, "list/many"),
		mutant("list: pages by offset", func(f *Fake) {
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for offset := 0; ; offset += 10 {
					if err := ctx.Err(); err != nil {
						yield(locker.Info{}, err)
						return
					}
					page := f.list(prefix)
					page = page[min(offset, len(page)):]
					if len(page) == 0 {
						return
					}
					for _, info := range page[:min(10, len(page))] {
						if !yield(info, nil) {
							return
						}
					}
				}
			})
		}, "list/concurrent"),
		mutant("list: keys that are met twice are yielded twice", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				n := 0
				for info, err := range list(ctx, prefix) {
					if n++; n%100 == 99 && err == nil && !yield(info, nil) {
						return
					}
					if !yield(info, err) {
						return
					}
				}
			})
		}, "list/many"),
		mutant("list: yields after it was told to stop", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					yield(info, err)
				}
			})
		}, "list/break"),
		mutant("list: each List leaves a goroutine", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				next := make(chan locker.Info)
				go func() {
					defer close(next)
					for info, err := range list(ctx, prefix) {
						if err != nil {
							continue
						}
						select {
						case next <- info:
						case <-time.After(time.Minute):
							return
						}
					}
				}()
				for info := range next {
					if !yield(info, nil) {
						return
					}
				}
				if err := ctx.Err(); err != nil {
					yield(locker.Info{}, err)
				}
			})
		}, "list/break"),
		mutant("list: cannot be used in its own body", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					if !yield(info, err) {
						return
					}
					if now := f.inspect(info.Key); err == nil && now.Token != info.Token {
						yield(locker.Info{}, errors.New("changed meanwhile"))
						return
					}
				}
			})
		}, "list/break"),
		mutant("list: ends without its context's error", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					if err != nil || !yield(info, err) {
						return
					}
				}
			})
		}, "list/context"),
		mutant("list: looks at its context only in the beginning", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				n := 0
				for info, err := range list(context.WithoutCancel(ctx), prefix) {
					if n++; n == 1 && ctx.Err() != nil {
						err, info = ctx.Err(), locker.Info{}
					}
					if !yield(info, err) || err != nil || n > 1 && ctx.Err() != nil {
						return
					}
				}
			})
		}, "list/context"),
		mutant("list: goes on after its error", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					if !yield(info, err) || err != nil && !yield(locker.Info{}, err) {
						return
					}
				}
			})
		}, "list/context"),
		mutant("list: an error for each lock that is held", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					if err == nil {
						info, err = locker.Info{Key: info.Key}, errors.New("not a lock")
					}
					if !yield(info, err) {
						return
					}
				}
			})
		}, "list/prefix", "list/many", "list/break"),
		mutant("list: no waiters in the Info", func(f *Fake) {
			list := f.OnList
			f.lists(func(ctx context.Context, prefix string, yield func(locker.Info, error) bool) {
				for info, err := range list(ctx, prefix) {
					info.Waiters = 0
					if !yield(info, err) {
						return
					}
				}
			})
		}, "list/queue"),
	}
}

// like reports whether name matches the prefix as LIKE does.
func like(prefix, name string) bool {
	for i := range prefix {
		switch {
		case prefix[i] == '%':
			for j := i; j <= len(name); j++ {
				if like(prefix[i+1:], name[j:]) {
					return true
				}
			}
			return false
		case i >= len(name) || prefix[i] != '_' && prefix[i] != name[i]:
			return false
		}
	}
	return true
}

package redisscan_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redisscan"
	"github.com/stretchr/testify/assert"
)

var (
	errForeign = errors.New("foreign")
	errDown    = errors.New("down")
)

// pages returns a Scan of a server with these pages.
func pages(t *testing.T, pattern string, pages ...string) redisscan.Scan {
	return func(cursor uint64, match string) (redisscan.Page, error) {
		assert.Equal(t, pattern, match)
		page := redisscan.Page{Keys: strings.Fields(pages[cursor]), Next: cursor + 1}
		if page.Next == uint64(len(pages)) {
			page.Next = 0
		}
		for _, key := range page.Keys {
			if key == "down" {
				return redisscan.Page{}, errDown
			}
		}
		return page, nil
	}
}

// locks are held, except for those named free, foreign and broken.
var locks = redisscan.Locks{
	KeyPrefix: "p:",
	Inspect: func(key string) (locker.Info, error) {
		switch key {
		case "free":
			return locker.Info{Key: key}, nil
		case "foreign":
			return locker.Info{Key: key}, errForeign
		case "broken":
			return locker.Info{Key: key}, errDown
		}
		return locker.Info{Key: key, Token: "t"}, nil
	},
	IsForeign: func(err error) bool { return errors.Is(err, errForeign) },
}

func TestList(t *testing.T) {
	t.Parallel()
	locks := locks
	for name, c := range map[string]struct {
		servers []redisscan.Scan
		most    int
		want    string
	}{
		"no server":        {nil, 9, ""},
		"no key":           {[]redisscan.Scan{pages(t, "p:*", "")}, 9, ""},
		"pages":            {[]redisscan.Scan{pages(t, "p:*", "p:a p:b", "", "p:c")}, 9, "a b c"},
		"repeated":         {[]redisscan.Scan{pages(t, "p:*", "p:a p:a", "p:b p:a")}, 9, "a b"},
		"two servers":      {[]redisscan.Scan{pages(t, "p:*", "p:a"), pages(t, "p:*", "p:b p:a")}, 9, "a b"},
		"free":             {[]redisscan.Scan{pages(t, "p:*", "p:a p:free p:b")}, 9, "a b"},
		"no name":          {[]redisscan.Scan{pages(t, "p:*", "p:a p: p:b")}, 9, "a b"},
		"prefix again":     {[]redisscan.Scan{pages(t, "p:*", "p:p:a")}, 9, "p:a"},
		"foreign":          {[]redisscan.Scan{pages(t, "p:*", "p:a p:foreign p:b")}, 9, "a foreign:foreign b"},
		"error of a lock":  {[]redisscan.Scan{pages(t, "p:*", "p:a p:broken p:b")}, 9, "a :down"},
		"error of a scan":  {[]redisscan.Scan{pages(t, "p:*", "p:a", "down"), pages(t, "p:*", "p:b")}, 9, "a :down"},
		"left":             {[]redisscan.Scan{pages(t, "p:*", "p:a p:b p:c", "p:d")}, 2, "a b"},
		"left at an error": {[]redisscan.Scan{pages(t, "p:*", "p:foreign p:b")}, 1, "foreign:foreign"},
	} {
		for _, locks.AtOnce = range []int{0, 2, 9} {
			var got []string
			locks.List("", c.servers, func(info locker.Info, err error) bool {
				if err != nil {
					info.Key += ":" + err.Error()
				}
				got = append(got, info.Key)
				return len(got) < c.most
			})
			assert.Equal(t, c.want, strings.Join(got, " "), "%s, %d at once", name, locks.AtOnce)
		}
	}
}

func TestAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks := redisscan.Locks{
			Inspect: func(key string) (locker.Info, error) {
				time.Sleep(time.Second)
				return locker.Info{Key: key, Token: "t"}, nil
			},
			AtOnce: 4,
		}
		start, n := time.Now(), 0
		locks.List("", []redisscan.Scan{pages(t, "*", "a b c d e", "f g")}, func(locker.Info, error) bool {
			n++
			return true
		})
		assert.Equal(t, 7, n)
		assert.Equal(t, 3*time.Second, time.Since(start), "four, the fifth, and those of the second page")
	})
}

// A panic, of a client's hook for instance, reaches the caller of List, which may recover it.
func TestPanicIsTheCallers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b"} {
		locks := redisscan.Locks{
			Inspect: func(key string) (locker.Info, error) {
				if key == name {
					panic("hook")
				}
				return locker.Info{Key: key, Token: "t"}, nil
			},
			AtOnce: 2,
		}
		assert.Panics(t, func() {
			locks.List("", []redisscan.Scan{pages(t, "*", "a b")}, func(locker.Info, error) bool { return true })
		}, name)
	}
}

// A prefix matches itself only.
func TestPattern(t *testing.T) {
	t.Parallel()
	scan := pages(t, `p:\*\?\[a\]\\*`, "")
	locks.List(`*?[a]\`, []redisscan.Scan{scan}, func(locker.Info, error) bool {
		t.Error("a lock")
		return false
	})
}

package names

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"sync"
)

// addHashed adds names that collide in some 32-bit hash, alone and as parts of longer names, which
// some adapters shorten by a hash.
func addHashed(add func(rule string, names ...string), base string) {
	for _, twin := range [][2]string{ // collide after any text: CRC-32 (IEEE, Castagnoli), h*31+c, h*33+c, Adler-32
		{"d69b648", "b01de8d"}, {"318a6c8", "90b508f"}, {"Aa", "BB"}, {"Ab", "BA"}, {"aca", "bab"},
	} {
		add("a 32-bit hash", base+twin[0], base+twin[1])
	}
	for _, twin := range [][2]string{{"d69b648", "b01de8d"}, {"318a6c8", "90b508f"}} { // and before any text
		for _, w := range []int{64, 128, 200, 250, 255, 256, 512, Limit} {
			fill := strings.Repeat("l", max(0, min(w, Limit-len(twin[0]))-len(base)))
			add("a 32-bit hash of a long name", base+fill+twin[0], base+fill+twin[1])
			add("a 32-bit hash of the middle of a long name", base+fill[:len(fill)/2]+twin[0]+fill[len(fill)/2:], base+fill[:len(fill)/2]+twin[1]+fill[len(fill)/2:])
			add("a 32-bit hash of the head of a long name", twin[0]+base+fill, twin[1]+base+fill)
		}
	}
	for _, twin := range twins() { // collide at the beginning, before any text
		for _, w := range []int{0, 128, 250, 256, 512, Limit} {
			fill := strings.Repeat("l", max(0, min(w, Limit-len(twin[0]))-len(base)))
			add("a 32-bit hash", twin[0]+base+fill, twin[1]+base+fill)
		}
	}
	for _, sum := range []func(s []byte) uint32{
		func(s []byte) uint32 { h := sha256.Sum256(s); return binary.BigEndian.Uint32(h[:]) },
		func(s []byte) uint32 { h := sha1.Sum(s); return binary.BigEndian.Uint32(h[:]) },
		func(s []byte) uint32 { h := md5.Sum(s); return binary.BigEndian.Uint32(h[:]) },
	} {
		if a, b, ok := collide(base, sum); ok {
			add("four bytes of a long hash", a, b)
		}
	}
}

// twins returns the pairs that collide in FNV, which take long to find.
var twins = sync.OnceValue(func() (pairs [][2]string) {
	for _, prefix := range []string{"", "locker:"} {
		for _, multiplyFirst := range []bool{false, true} {
			const first = "conformance/"
			begin := fnv(2166136261, prefix+first, multiplyFirst)
			// FNV keeps short names that differ in few digits apart.
			suffix := func(i uint64) string { return strconv.FormatUint(i*0x9e3779b97f4a7c15, 36) }
			if i, j, ok := birthday(func(i uint64) uint32 { return fnv(begin, suffix(i), multiplyFirst) }); ok {
				pairs = append(pairs, [2]string{first + suffix(i), first + suffix(j)})
			}
		}
	}
	return pairs
})

// fnv continues FNV-1a, or FNV-1, which multiplies first.
func fnv(h uint32, s string, multiplyFirst bool) uint32 {
	for i := range len(s) {
		if multiplyFirst {
			h = h*16777619 ^ uint32(s[i])
		} else {
			h = (h ^ uint32(s[i])) * 16777619
		}
	}
	return h
}

// collide returns two names that begin with base and have the same sum.
func collide(base string, sum func(s []byte) uint32) (a, b string, ok bool) {
	name := []byte(base + "/")
	n := len(name)
	i, j, ok := birthday(func(i uint64) uint32 { return sum(strconv.AppendUint(name[:n], i, 36)) })
	return string(name[:n]) + strconv.FormatUint(i, 36), string(name[:n]) + strconv.FormatUint(j, 36), ok
}

// birthday returns two numbers with the same hash. Among a quarter of a million there are some, but
// for a chance of one in a thousand.
func birthday(hash func(i uint64) uint32) (i, j uint64, ok bool) {
	const size = 1 << 19
	seen := make([]uint64, size) // a hash table of hash and i, each in its hash's place or after it
	for i := uint64(1); i < size/2; i++ {
		h := hash(i)
		at := h % size
		for ; seen[at] != 0; at = (at + 1) % size {
			if uint32(seen[at]>>32) == h {
				return seen[at] & math.MaxUint32, i, true
			}
		}
		seen[at] = uint64(h)<<32 | i
	}
	return 0, 0, false
}

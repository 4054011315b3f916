package main

import (
	"math/bits"
	"time"
)

// hist counts durations in buckets: 32 for each power of two nanoseconds, so each is up to 3% wide, or
// a nanosecond. The processes of the fleet send it to their parent as JSON.
type hist []int64

// buckets is their number. They reach to a minute.
const buckets = 1024

func newHist() hist { return make(hist, buckets) }

// add must be fast, since its time counts as the contender's.
func (h hist) add(d time.Duration) {
	n := uint64(max(d, 0))
	shift := max(bits.Len64(n)-6, 0)
	h[min(32*shift+int(n>>shift), buckets-1)]++
}

// middle returns the duration in the middle of a bucket.
func middle(bucket int) time.Duration {
	shift := max(bucket/32-1, 0)
	return time.Duration((2*(bucket-32*shift)+1)<<shift) / 2
}

func (h hist) merge(other hist) {
	for bucket, n := range other[:min(len(other), buckets)] {
		h[bucket] += n
	}
}

// quantile is the middle of the bucket in which it lies, and 0 when there is nothing.
func (h hist) quantile(q float64) time.Duration {
	total := h.count()
	var sum int64
	for bucket, n := range h {
		sum += n
		if total > 0 && float64(sum) >= q*float64(total) {
			return middle(bucket)
		}
	}
	return 0
}

func (h hist) count() (n int64) {
	for _, c := range h {
		n += c
	}
	return n
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

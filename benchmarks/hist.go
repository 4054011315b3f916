package main

import (
	"math"
	"time"
)

// hist counts durations in buckets that grow by 2%. It crosses from a process of the fleet to the
// parent as JSON.
type hist []int64

// buckets reach to a minute.
const buckets = 1260

func newHist() hist { return make(hist, buckets) }

func (h hist) add(d time.Duration) {
	h[min(int(math.Log(max(float64(d), 1))/math.Log(1.02)), buckets-1)]++
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
			return time.Duration(math.Pow(1.02, float64(bucket)+0.5))
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

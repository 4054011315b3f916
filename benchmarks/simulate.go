package main

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// A simulation shows what saturates first in a fleet that is too large to be measured. The cost of
// an operation is taken from the raw results.

// demand is the load that a fleet causes.
type demand struct {
	Name      string
	Processes int
	Keys      int     // that are locked from time to time
	Cycles    float64 // of Lock and Unlock, for each second and process
	Kept      int     // locks that a process holds and keeps alive
	KeptTTL   time.Duration
	Waiters   int // goroutines of a process that wait for locks
}

// demands have the same processes, keys, and kept locks, and differ in how often locks are taken.
var demands = []demand{
	{"a lock a second for each process", 10_000, 1_000_000, 1, 10, 15 * time.Second, 5},
	{"ten", 10_000, 1_000_000, 10, 10, 15 * time.Second, 5},
	{"a hundred", 10_000, 1_000_000, 100, 10, 15 * time.Second, 5},
}

// deployment is a backend with its costs and limits.
type deployment struct {
	Name string
	// Measured:
	CycleCost   float64 // seconds that a cycle keeps a node busy
	ExtendCost  float64 // seconds that an extension keeps a node busy
	LockBytes   float64 // of a server's memory
	WaiterBytes float64
	WaiterRate  float64 // requests a second of a waiter whose queue does not move
	// From the documentation of the server:
	Connections    int // to a node, of each process
	MaxConnections int // of a node, with its defaults
}

const (
	nodeMemory  = 16 << 30
	mostLoad    = 0.7 // of a node's time; beyond that queues grow quickly
	mostNodes   = 512
	simulated   = 100_000 // cycles
	keySkew     = 1.05    // of Zipf's law
	keySkewFrom = 100     // flattens its head: the hottest key has about a thousandth of all cycles
)

// deployments returns the deployments, with costs from the results. If a cost is missing, it
// returns an error.
func (r *results) deployments() ([]deployment, error) {
	missing := []string{}
	value := func(section, scenario, who, unit string) float64 {
		v := r.row(section, scenario, who).median(unit)
		if math.IsNaN(v) {
			missing = append(missing, fmt.Sprintf("%s of %s/%s/%s", unit, section, scenario, who))
		}
		return v
	}
	redis := func(name, who string) deployment {
		// A server of Redis runs commands on one thread.
		cycle := value("scale", "held-1000000", who, "server-cpu-us/cycle") * 1e-6
		return deployment{
			Name: name, CycleCost: cycle, ExtendCost: cycle / 2,
			LockBytes:   value("scale", "keys-100000", who, "server-bytes/lock"),
			WaiterBytes: value("scale", "keys-100000", who, "server-bytes/waiter"),
			WaiterRate:  value("scale", "keys-100000", who, "requests/s") / 100_000,
			Connections: 2, MaxConnections: 10_000,
		}
	}
	// The others are limited by the disk and by several processors, so their cost is the inverse of
	// the measured throughput.
	other := func(name, section string, maxConnections int) deployment {
		cycle := 1 / value(section, "uncontended-32", section, "cycles/s")
		return deployment{Name: name, CycleCost: cycle, ExtendCost: cycle / 2, Connections: 1, MaxConnections: maxConnections}
	}
	list := []deployment{
		redis("Redis, redisv9", "redisv9"),
		redis("Redis, rueidis", "rueidis"),
		other("PostgreSQL", "postgres", 100),
		other("etcd", "etcd", math.MaxInt),
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: no results: %s", errSetUp, strings.Join(missing, ", "))
	}
	return list, nil
}

// outcome describes a number of nodes under a load.
type outcome struct {
	Nodes       int
	Busiest     float64       // share of its time that the busiest node works
	Mean, P99   time.Duration // of a cycle at a node
	Connections int           // to a node
	Memory      float64
	Saturated   string // the resource that is exhausted with any number of nodes, if any
}

// size doubles the number of nodes until the busiest is below its limit.
func size(d deployment, l demand) outcome {
	o := outcome{}
	for nodes := 1; ; nodes *= 2 {
		o = simulate(d, l, nodes)
		if o.Busiest <= mostLoad && o.Memory <= nodeMemory || nodes >= mostNodes {
			break
		}
	}
	if o.Busiest > mostLoad {
		o.Saturated = "the busiest node"
	}
	// Each process connects to every node, so more nodes do not mean fewer connections to each.
	if o.Connections > d.MaxConnections {
		o.Saturated = strings.TrimPrefix(o.Saturated+", connections", ", ")
	}
	return o
}

// simulate lets cycles arrive at random at nodes that execute one at a time. Extensions and waiters
// load all nodes evenly.
func simulate(d deployment, l demand, nodes int) outcome {
	random := rand.New(rand.NewPCG(1, 2)) // the same in every run
	zipf := rand.NewZipf(random, keySkew, keySkewFrom, uint64(l.Keys-1))
	processes := float64(l.Processes)
	rate := processes * l.Cycles
	background := (processes*float64(l.Kept)*3/l.KeptTTL.Seconds() + processes*float64(l.Waiters)*d.WaiterRate) *
		d.ExtendCost / float64(nodes)
	o := outcome{Nodes: nodes, Connections: l.Processes * d.Connections}
	o.Memory = (processes*float64(l.Kept)*d.LockBytes + processes*float64(l.Waiters)*d.WaiterBytes) / float64(nodes)
	if background >= 1 {
		o.Busiest = background
		return o
	}
	cost := d.CycleCost / (1 - background) // the node's other work slows it down
	free, busy := make([]float64, nodes), make([]float64, nodes)
	took := make([]float64, simulated)
	now := 0.0
	for i := range took {
		now += random.ExpFloat64() / rate
		node := hash(zipf.Uint64()) % uint64(nodes)
		begin := max(now, free[node])
		free[node] = begin + cost
		busy[node] += d.CycleCost
		took[i] = free[node] - now
	}
	o.Busiest = slices.Max(busy)/now + background
	sum := 0.0
	for _, s := range took {
		sum += s
	}
	slices.Sort(took)
	o.Mean, o.P99 = seconds64(sum/simulated), seconds64(took[simulated*99/100])
	return o
}

func seconds64(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// hash spreads keys over nodes.
func hash(key uint64) uint64 {
	key ^= key >> 33
	key *= 0xff51afd7ed558ccd
	key ^= key >> 33
	return key
}

//go:embed scale.md
var scalePage string

// simulateFleets writes the page about fleets, with the costs from the results in dir.
func simulateFleets(dir, file string) error {
	r, err := readResults(dir)
	if err != nil {
		return err
	}
	deployments, err := r.deployments()
	if err != nil {
		return err
	}
	page := strings.NewReplacer(
		"<!-- standing -->", r.table("scale", []string{"queue-", "kept-", "keys-"}),
		"<!-- held -->", r.table("scale", []string{"held-"}),
		"<!-- costs -->", costTable(deployments),
		"<!-- fleets -->", fleetTable(deployments),
	).Replace(scalePage)
	return os.WriteFile(file, []byte(page), 0o644)
}

// table has the rows of the scenarios with one of the prefixes.
func (r *results) table(section string, prefixes []string) string {
	var rows []*row
	var units []string
	for _, w := range r.rows {
		if w.section != section || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(w.scenario, p) }) {
			continue
		}
		rows = append(rows, w)
		for _, unit := range w.units {
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | | %s |\n|---|---|%s\n", strings.Join(units, " | "), strings.Repeat("---:|", len(units)))
	for _, w := range rows {
		fmt.Fprintf(&b, "| %s | %s |", w.scenario, w.who)
		for _, unit := range units {
			fmt.Fprintf(&b, " %s |", number(w.median(unit)))
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func costTable(deployments []deployment) string {
	var b strings.Builder
	b.WriteString("| | a cycle, µs of a node | a lock, bytes | a waiter, bytes | a waiter, requests/s |\n|---|---:|---:|---:|---:|\n")
	for _, d := range deployments {
		fmt.Fprintf(&b, "| %s | %s |", d.Name, number(d.CycleCost*1e6))
		for _, cost := range []float64{d.LockBytes, d.WaiterBytes, d.WaiterRate} {
			if cost == 0 { // not measured
				cost = math.NaN()
			}
			fmt.Fprintf(&b, " %s |", number(cost))
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func fleetTable(deployments []deployment) string {
	var b strings.Builder
	b.WriteString("| cycles/s | backend | nodes | busiest node | mean | p99 | connections to a node | saturated |\n" +
		"|---:|---|---:|---:|---:|---:|---:|---|\n")
	for _, l := range demands {
		for _, d := range deployments {
			o := size(d, l)
			mean, p99 := o.Mean.Round(time.Microsecond).String(), o.P99.Round(time.Microsecond).String()
			if o.Busiest > mostLoad {
				mean, p99 = "", "" // they depend on how long it lasts
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %.0f %% | %s | %s | %d | %s |\n", number(float64(l.Processes)*l.Cycles), d.Name,
				o.Nodes, 100*o.Busiest, mean, p99, o.Connections, o.Saturated)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

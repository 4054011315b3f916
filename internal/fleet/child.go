package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Role is what a process of a fleet does. The process ends when it returns.
type Role func(*Child)

// Child is a process's connection to its parent. Its methods end the process when the parent is
// gone.
type Child struct {
	orders  chan json.RawMessage
	mu      sync.Mutex // of reports
	reports *json.Encoder
}

// Main plays a role and exits if this process is one of a fleet. Otherwise it returns at once.
func Main(roles map[string]Role) {
	name, isChild := os.LookupEnv(roleVariable)
	if !isChild {
		return
	}
	role := roles[name]
	if role == nil {
		fmt.Fprintf(os.Stderr, "fleet: no role %q\n", name)
		os.Exit(1)
	}
	// Ctrl-C reaches the whole process group. It is for the parent to decide.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	c := &Child{orders: make(chan json.RawMessage), reports: json.NewEncoder(os.Stdout)}
	go func() {
		for decoder := json.NewDecoder(os.Stdin); ; {
			var order json.RawMessage
			if decoder.Decode(&order) != nil {
				os.Exit(1) // the parent is gone; what is held expires
			}
			c.orders <- order
		}
	}()
	role(c)
	os.Exit(0)
}

// Receive waits for the next order and decodes it into order, a pointer.
func (c *Child) Receive(order any) {
	if err := json.Unmarshal(<-c.orders, order); err != nil {
		fmt.Fprintln(os.Stderr, "fleet: order:", err)
		os.Exit(1)
	}
}

// Report sends the parent a report. Several goroutines may call it at once.
func (c *Child) Report(report any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.reports.Encode(report); err != nil {
		os.Exit(1)
	}
}

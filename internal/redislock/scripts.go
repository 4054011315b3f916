package redislock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

// Script is a Lua script and the name that servers know it by.
type Script struct{ Text, Hash string }

//go:embed *.lua
var files embed.FS

// In the scripts on locks, KEYS[1] is the queue, and the other keys are the locks of which a waiter
// takes one. ARGV[1] is the caller's token. TTLs are milliseconds. The files describe the rest.
//
// The queue is a sorted set of entries, "<channel> <id>", one for each process that waits. A process
// may wait for as many permits of a semaphore as there are, and has as many entries. The ID is a new
// one whenever the process has taken a lock. A lock's value is the token that holds it, or "offer:"
// and the entry that it is offered to. Messages are "<id> offer" and "<id> <ms>", the time after
// which to look.
//
// A script that changes nothing, except Inspect, makes a write without effect, so that a read-only
// replica refuses it.
var (
	Look    = load("look")    // takes a lock, or joins the queue
	Release = load("release") // frees or offers a lock, leaves the queue
	Extend  = load("extend")
	Fence   = load("fence") // Count and Holds in one: KEYS[1] is the counter, KEYS[2] the lock
	Count   = load("count") // KEYS[1] is the counter of fencing numbers
	Holds   = load("holds") // KEYS[1] is the lock
	Inspect = load("inspect")
	Window  = load("window") // KEYS[1] is a counter of package window
	Demand  = load("demand") // asks the lock's owner to give it up
	Answer  = load("answer") // answers that
)

// load reads a script and replaces each line "--include <name>" by the text of that file.
func load(name string) Script {
	text := read(name)
	for {
		before, rest, ok := strings.Cut(text, "--include ")
		if !ok {
			break
		}
		included, after, _ := strings.Cut(rest, "\n")
		text = before + read(included) + after
	}
	hash := sha1.Sum([]byte(text))
	return Script{text, hex.EncodeToString(hash[:])}
}

func read(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

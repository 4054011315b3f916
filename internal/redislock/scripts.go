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

// In every script but Releases, Fence, Count and Window, KEYS[1] is the lock, KEYS[2] its queue if
// it has one, and ARGV[1] the caller's token. In the scripts for permits, KEYS[1] is the permits'
// queue, and the other keys are the permits, which are locks. TTLs are milliseconds. The files
// describe the rest.
//
// The queue is a sorted set of three kinds of members, distinguished by their scores:
//
//   - From 1 on: the entries of the waiters, "<channel> <nonce> <claim> <ttl> <token>"; see
//     [Entry]. The score is the entry's ticket, the microsecond at which it joined or one more
//     than the last one's: no two are ever the same.
//   - 0 or 0.5: the nonce of the entry through which the present holder was served. With 0.5 it
//     still has to claim the lock. For permit i, (i-1)/128 is added.
//   - Below 0: when a process was last heard from, by the name of its channel, and when it was
//     last asked whether it is alive, by "?" and that name; in milliseconds, negated.
//
// A script that changes nothing, except Inspect, makes a write without effect, so that a read-only
// replica refuses it.
var (
	Look     = load("look")     // takes the lock, or joins the queue
	Release  = load("release")  // frees the lock, leaves the queue
	Releases = load("releases") // frees several locks
	Extend   = load("extend")
	Sweep    = load("sweep") // serves the queue of a lock that is free
	Fence    = load("fence") // Count and Holds in one: KEYS[1] is the counter, KEYS[2] the lock
	Count    = load("count") // KEYS[1] is the counter of fencing numbers
	Holds    = load("holds")
	Inspect  = load("inspect")
	Window   = load("window") // KEYS[1] is a counter of package window
	Demand   = load("demand") // asks the lock's owner to give it up
	Answer   = load("answer") // answers that

	// PermitsLook and the following do the same for one of the permits of a semaphore.
	PermitsLook    = load("permits_look")
	PermitsRelease = load("permits_release")
	PermitsExtend  = load("permits_extend")
	PermitsSweep   = load("permits_sweep")
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

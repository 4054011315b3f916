package faultproxy

import (
	"encoding/binary"
	"slices"
)

// preface is what a client that speaks HTTP/2 sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// The frames of HTTP/2 (RFC 9113, section 6) that matter here.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameContinuation = 0x9

	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
)

const frameHeader = 9 // bytes

// frame is a frame of HTTP/2: a header and its payload. One that begins a block of header fields
// includes the CONTINUATION frames that complete the block, since nothing may come between them.
type frame []byte

func (f frame) kind() byte     { return f[3] }
func (f frame) stream() uint32 { return binary.BigEndian.Uint32(f[5:9]) &^ (1 << 31) }

// size returns the length of the frame, or of its first part if more follow, with the header.
func (f frame) size() int { return frameHeader + int(f[0])<<16 + int(f[1])<<8 + int(f[2]) }

// ends reports whether f is the last of its sender on its stream.
func (f frame) ends() bool {
	switch f.kind() {
	case frameData, frameHeaders:
		return f[4]&flagEndStream != 0
	}
	return f.kind() == frameReset
}

// content returns the bytes that a DATA frame carries, and those of any other frame as none.
func (f frame) content() []byte {
	if f.kind() != frameData {
		return nil
	}
	b := f[frameHeader:]
	if f[4]&flagPadded != 0 && len(b) > 0 && int(b[0]) < len(b) {
		b = b[1 : len(b)-int(b[0])]
	}
	return b
}

// shortened returns a DATA frame with the first n bytes of f's content, which ends nothing.
func (f frame) shortened(n int) frame {
	short := append(frame{byte(n >> 16), byte(n >> 8), byte(n), frameData, 0}, f[5:9]...)
	return append(short, f.content()[:n]...)
}

// frames cuts bytes into frames.
type frames struct {
	buf  []byte // what has not been cut yet
	done int    // how many of its first bytes have been forwarded already
}

// forwarded adds bytes that have been forwarded already.
func (s *frames) forwarded(b []byte) {
	s.buf = append(s.buf, b...)
	s.done = len(s.buf)
}

func (s *frames) add(b []byte) { s.buf = append(s.buf, b...) }

// next returns the next whole frame and the part of it that has not been forwarded yet, or false
// if more bytes have to come first.
func (s *frames) next() (f frame, rest []byte, ok bool) {
	n := 0
	for {
		if len(s.buf) < n+frameHeader {
			return nil, nil, false
		}
		part := frame(s.buf[n:])
		n += part.size()
		if len(s.buf) < n {
			return nil, nil, false
		}
		const pushPromise = 0x5
		if k := part.kind(); k != frameHeaders && k != pushPromise && k != frameContinuation || part[4]&flagEndHeaders != 0 {
			break
		}
	}
	f, s.buf = slices.Clone(s.buf[:n]), s.buf[n:]
	already := min(s.done, n)
	s.done -= already
	return f, f[already:], true
}

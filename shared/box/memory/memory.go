// Package memory keeps the memory of a sealed process while it sleeps. It seals an image of
// the memory for one box, opens it again, and speaks with the keeper program that makes and
// takes images. It does not decide when a process sleeps, and runs no processes.
//
// # The image
//
// An image is a JSON header behind its length (4 bytes, big endian), and then chunks of
// 1 MiB, each encrypted with AES-256-GCM. The nonce of a chunk is its number, and says
// whether it is the last. The header is additional data of each chunk. So nothing of an
// image can be changed, cut, moved or taken from another image without an error.
//
// The plain text is a zstd stream of what the keeper has sent (see [Control.Freeze]), and
// behind it the state of the conversation with the process. Plain text never reaches a disk.
//
// # The key
//
// The key comes by HKDF-SHA256 from the key of a tenant, the box, its generation, and a salt
// of the image. The keys of tenants come from a [Root]. An image *is* the secrets of its
// process, so images and the root are in no log, bug report or backup.
//
// # Used once
//
// What a program has drawn at random, such as keys, would be drawn twice if an image were
// thawed twice. So [Found.Claim] deletes the image before its first byte reaches a process.
// A runner that has not claimed an image does not thaw it. No image is tried a second time.
package memory

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// Limits of an image. One that exceeds a limit is not kept or not used: the process then
// starts without its memory.
const (
	MaxBytes     = 256 << 20        // size of an image in the store
	MaxAge       = 24 * time.Hour   // age of an image, counted from the freeze
	FreezeWithin = 10 * time.Second // time to stop the program and hand over its memory
)

// format is the version of the image.
const format = 1

// Fit says where an image can be thawed. An image fits only a keeper that says exactly the
// same. See [Control.Fit].
type Fit map[string]string

// Header is the plain part of an image. The image authenticates it.
type Header struct {
	Format     int       `json:"format"`
	Fit        Fit       `json:"fit"`
	Install    string    `json:"install"` // a digest of what the process was started from
	Tenant     string    `json:"tenant"`
	Box        string    `json:"box"`
	Process    string    `json:"process"` // name of the process in the box
	Generation int64     `json:"generation"`
	Saved      time.Time `json:"saved"`
	Salt       []byte    `json:"salt"`
}

// LostError says why a process starts without the memory that was kept for it.
type LostError struct{ Why string }

// Error returns the reason.
func (e *LostError) Error() string { return e.Why }

func lost(format string, args ...any) error { return &LostError{fmt.Sprintf(format, args...)} }

// sealed returns a new header like h, with a salt of its own.
func (h Header) sealed(now time.Time) Header {
	h.Format, h.Saved, h.Salt = format, now.UTC().Truncate(time.Millisecond), make([]byte, 32)
	_, _ = rand.Read(h.Salt) // it never fails
	return h
}

// fits returns why an image with this header cannot be used by the process that want
// describes, nil if it can.
func (h Header) fits(want Header, now time.Time) error {
	switch age := now.Sub(h.Saved); {
	case h.Format != format:
		return lost("its image has the format %d, and this version reads %d", h.Format, format)
	case h.Tenant != want.Tenant || h.Box != want.Box:
		return lost("its image is of another box")
	case h.Process != want.Process:
		return lost("its image is of another process")
	case h.Generation > want.Generation:
		return lost("its image is of a newer runner of the box")
	case age > MaxAge:
		return lost("its image is older than %.0f hours", MaxAge.Hours())
	case age < -time.Hour:
		return lost("its image comes from the future: the clock was changed")
	case len(h.Salt) != 32:
		return lost("its image is damaged")
	case h.Install != want.Install:
		return lost("the programs it was started from have changed")
	case !maps.Equal(h.Fit, want.Fit):
		return lost("%s", difference(h.Fit, want.Fit))
	}
	return nil
}

// difference names the first part of a fit that differs.
func difference(was, is Fit) string {
	for _, part := range []struct{ key, words string }{
		{"build", "the keeper is of another version"},
		{"arch", "the processor is of another kind"},
		{"cpu", "the processor has other features"},
		{"page", "the kernel has pages of another size"},
		{"image", "the image of the server has changed"},
		{"spec", "the settings, variables or programs of the server have changed"},
	} {
		if was[part.key] != is[part.key] {
			return part.words
		}
	}
	return "the keeper says of itself what the other one did not"
}

func (h Header) encode() ([]byte, error) { return json.Marshal(h) }

// maxHeader limits a header, in bytes.
const maxHeader = 64 << 10

func decodeHeader(raw []byte) (h Header, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(&h) != nil {
		return h, lost("its image is damaged: the header cannot be read")
	}
	return h, nil
}

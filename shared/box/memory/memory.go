// Package memory stores the memory of a process that a keeper runs in a virtual kernel, while the
// process sleeps. The package encrypts an image of the memory for one box, decrypts it again, and
// speaks with the keeper, which makes images and restores them. It does not decide when a process
// sleeps, and runs no processes.
//
// # The image
//
// An image begins with the length of its header (4 bytes, big endian) and the header in JSON.
// Chunks of 1 MiB follow, each encrypted with AES-256-GCM. The nonce of a chunk consists of its
// number and whether it is the last. The header is additional data of each chunk, so that nothing
// in an image can be changed, cut off, moved or taken from another image without an error.
//
// The plain text is a zstd stream: first what the keeper has sent (see [Control.Freeze]), and then
// the state of the conversation with the process. Plain text is never written to a disk.
//
// # The key
//
// The key of an image is derived by HKDF-SHA256 from the key of the tenant, the box, its
// generation, and a salt in the header. The keys of tenants are derived from a [Root]. An image
// contains all secrets of its process, so images and the Root are in no log, bug report or backup.
//
// # Used once
//
// If an image were thawed twice, random values that the program had drawn, such as keys, would be
// used twice. [Found.Claim] therefore deletes the image before a process gets the first byte.
package memory

import (
	"crypto/rand"
	"fmt"
	"maps"
	"time"
)

// Limits of an image. An image that exceeds one of them is not stored, or not used.
const (
	MaxBytes     = 256 << 20        // size of an image in the store
	MaxAge       = 24 * time.Hour   // age of an image, counted from the freeze
	FreezeWithin = 10 * time.Second // time to stop the program and transfer its memory
)

// format is the version of the format of images.
const format = 1

// Fit describes a keeper and its machine. A keeper can thaw an image only if its Fit equals that of
// the image; see [Control.Fit].
type Fit map[string]string

// Header is the part of an image that is not encrypted. Each chunk authenticates the header.
type Header struct {
	Format     int       `json:"format"`
	Fit        Fit       `json:"fit"`
	Install    string    `json:"install"` // a digest of the command with which the process was started
	Tenant     string    `json:"tenant"`
	Box        string    `json:"box"`
	Process    string    `json:"process"`
	Generation int64     `json:"generation"`
	Saved      time.Time `json:"saved"`
	Salt       []byte    `json:"salt"`
}

// LostError says why a process starts without the memory that was stored for it.
type LostError struct{ Why string }

// Error returns the reason.
func (e *LostError) Error() string { return e.Why }

func lost(format string, args ...any) error { return &LostError{fmt.Sprintf(format, args...)} }

// sealed returns h with a new salt, the present format, and the present time as Saved.
func (h Header) sealed() Header {
	h.Format, h.Saved, h.Salt = format, time.Now().UTC().Truncate(time.Millisecond), make([]byte, 32)
	_, _ = rand.Read(h.Salt) // never fails
	return h
}

// fits returns nil if an image with the header h can be used for the process of the header want. If
// not, the error says why.
func (h Header) fits(want Header) error {
	switch age := time.Since(h.Saved); {
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

// difference returns a text about the first pair in which two values of Fit differ.
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

// maxHeader is how many bytes a header may have.
const maxHeader = 64 << 10

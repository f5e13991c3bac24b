package transport

import (
	"compress/gzip"
	"errors"
	"io"
)

// idlePacked is how many bytes of a packed body may give nothing: its head, and the ends of
// its blocks.
const idlePacked = 64 << 10

// errIdle is the error of a packed body whose bytes give nothing.
var errIdle = errors.New("it is packed so that its bytes give nothing")

// unpacking reads a packed body. The time that this takes follows from what it gives: a body
// may have no more bytes than it gives, but for idlePacked. Members and blocks that are empty
// would cost time without end.
type unpacking struct {
	*gzip.Reader
	packed io.Reader
	took   int64
	gave   int64
}

func unpack(packed io.Reader) (*unpacking, error) {
	u := &unpacking{packed: packed}
	var err error
	u.Reader, err = gzip.NewReader(taken{u})
	return u, err
}

func (u *unpacking) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	u.gave += int64(n)
	return n, err
}

type taken struct{ u *unpacking }

func (t taken) Read(p []byte) (int, error) {
	if t.u.took > t.u.gave+idlePacked {
		return 0, errIdle
	}
	n, err := t.u.packed.Read(p)
	t.u.took += int64(n)
	return n, err
}

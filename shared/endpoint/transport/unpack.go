package transport

import (
	"compress/gzip"
	"errors"
	"io"
)

// unpacking unpacks a gzip body. A gzip stream may have any number of empty members and empty
// blocks, which cost time and yield nothing. unpacking therefore refuses a body once it has read
// idlePacked bytes more than it has yielded.
type unpacking struct {
	*gzip.Reader
	packed io.Reader
	read   int64 // packed bytes read
	gave   int64 // unpacked bytes returned
}

// idlePacked is how many packed bytes of a body may yield no data. The header and the ends of blocks
// yield none.
const idlePacked = 64 << 10

var errIdle = errors.New("its packed bytes yield no data")

func unpack(packed io.Reader) (*unpacking, error) {
	u := &unpacking{packed: packed}
	var err error
	u.Reader, err = gzip.NewReader(packedBytes{u})
	return u, err
}

func (u *unpacking) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	u.gave += int64(n)
	return n, err
}

// packedBytes reads the packed body for the gzip reader, and counts the bytes.
type packedBytes struct{ u *unpacking }

func (b packedBytes) Read(p []byte) (int, error) {
	if b.u.read > b.u.gave+idlePacked {
		return 0, errIdle
	}
	n, err := b.u.packed.Read(p)
	b.u.read += int64(n)
	return n, err
}

package memory

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
)

// chunkBytes is the size of a chunk before encryption. Only the last chunk may be smaller.
const chunkBytes = 1 << 20

// crypt encrypts or decrypts the chunks of an image, in order.
type crypt struct {
	aead   cipher.AEAD
	header []byte
	n      uint64
}

func newCrypt(key Tenant, h Header, raw []byte) (*crypt, error) {
	secret, err := key.image(h)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &crypt{aead: aead, header: raw}, err
}

// nonce returns the nonce of the next chunk. Each image has its own key, so no nonce is used twice
// with a key.
func (c *crypt) nonce(last bool) []byte {
	nonce := make([]byte, 12)
	binary.BigEndian.PutUint64(nonce[4:], c.n)
	if last {
		nonce[0] = 1
	}
	c.n++
	return nonce
}

// sealer encrypts in chunks what is written to it. Close writes the last chunk.
type sealer struct {
	to    io.Writer
	crypt *crypt
	plain []byte
}

// newSealer writes the header, and returns a sealer for the plain text that follows.
func newSealer(to io.Writer, key Tenant, h Header) (*sealer, error) {
	header, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(header) > maxHeader {
		return nil, lost("its header has %d bytes", len(header))
	}
	c, err := newCrypt(key, h, header)
	if err != nil {
		return nil, err
	}
	if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(header))), header...)); err != nil { //nolint:gosec // the length is at most maxHeader
		return nil, err
	}
	return &sealer{to: to, crypt: c, plain: make([]byte, 0, chunkBytes)}, nil
}

func (s *sealer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(s.plain) == chunkBytes {
			if err := s.flush(false); err != nil {
				return 0, err
			}
		}
		k := min(len(p), chunkBytes-len(s.plain))
		s.plain, p = append(s.plain, p[:k]...), p[k:]
	}
	return n, nil
}

func (s *sealer) flush(last bool) error {
	_, err := s.to.Write(s.crypt.aead.Seal(nil, s.crypt.nonce(last), s.plain, s.crypt.header))
	s.plain = s.plain[:0]
	return err
}

func (s *sealer) Close() error { return s.flush(true) }

// opener decrypts an image, and returns no byte of a chunk before it has authenticated the chunk.
type opener struct {
	from  io.Reader
	crypt *crypt
	chunk []byte // an encrypted chunk, and the first byte of the next one
	have  int    // how many bytes of chunk were read already
	out   []byte
	plain []byte // the part of out that Read has not returned yet
	last  bool
}

// readHeader reads the header of an image, which is not authenticated yet.
func readHeader(from io.Reader) (h Header, raw []byte, err error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return h, nil, damaged(err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxHeader {
		return h, nil, lost("its image is damaged: the header has %d bytes", n)
	}
	raw = make([]byte, n)
	if _, err := io.ReadFull(from, raw); err != nil {
		return h, nil, damaged(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(&h) != nil {
		return h, nil, lost("its image is damaged: the header cannot be read")
	}
	return h, raw, nil
}

// damaged returns a [*LostError] if err says that the image is incomplete, and err otherwise.
func damaged(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return lost("its image is cut")
	}
	return err
}

// newOpener returns a reader of the plain text after a header.
func newOpener(from io.Reader, key Tenant, h Header, raw []byte) (*opener, error) {
	c, err := newCrypt(key, h, raw)
	if err != nil {
		return nil, err
	}
	return &opener{from: from, crypt: c, chunk: make([]byte, chunkBytes+c.aead.Overhead()+1)}, nil
}

// Read fails with a [*LostError] if the image is damaged.
func (o *opener) Read(p []byte) (int, error) {
	for len(o.plain) == 0 {
		if o.last {
			return 0, io.EOF
		}
		if err := o.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, o.plain)
	o.plain = o.plain[n:]
	return n, nil
}

// next decrypts the next chunk, and reads one byte more, to find out whether the chunk is the last
// one.
func (o *opener) next() error {
	n, err := io.ReadFull(o.from, o.chunk[o.have:])
	switch n += o.have; {
	case err == nil:
		n--
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		o.last = true
	default:
		return err
	}
	o.out, err = o.crypt.aead.Open(o.out[:0], o.crypt.nonce(o.last), o.chunk[:n], o.crypt.header)
	if err != nil {
		return lost("its image is damaged, or the key is another one")
	}
	o.plain, o.have = o.out, 0
	if !o.last {
		o.chunk[0], o.have = o.chunk[n], 1
	}
	return nil
}

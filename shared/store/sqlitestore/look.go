package sqlitestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The beginning of a file of SQLite 3: a text, and at these offsets two numbers of four bytes,
// big-endian.
const (
	sqliteText    = "SQLite format 3\x00"
	versionAt     = 60 // user_version
	applicationAt = 68 // application_id
)

// look returns an error if [Open] could not use the file at path, because it is no
// store, has a newer version, or is not writable. The error wraps [os.ErrNotExist] if
// there is no file. look changes nothing, and may be used beside an open store.
func look(path string) error {
	if err := lost(path); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return noStore(path) // to open a pipe would take for ever
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read: nothing can be lost
	head := make([]byte, 100)
	_, noLog := os.Stat(path + "-wal") // the log may hold the application id
	switch _, err := io.ReadFull(f, head); {
	case errors.Is(err, io.EOF): // Open fills an empty file
	case err != nil || !bytes.HasPrefix(head, []byte(sqliteText)):
		return noStore(path).Because(err)
	case binary.BigEndian.Uint32(head[applicationAt:]) != applicationID && noLog != nil:
		return noStore(path)
	default:
		if version := binary.BigEndian.Uint32(head[versionAt:]); version > schemaVersion {
			return tooNew(path, int(version))
		}
	}
	if err := unix.Access(path, unix.W_OK); err != nil {
		return fmt.Errorf("%s cannot be written: %w", path, err)
	}
	return nil
}

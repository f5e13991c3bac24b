//go:build !linux

package sqlitestore

import "os"

func syncData(f *os.File) error { return f.Sync() }

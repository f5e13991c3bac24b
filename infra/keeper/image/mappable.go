package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/erofs/go-erofs"
)

// Offsets and constants of the EROFS format, from erofs_fs.h of Linux.
const (
	block       = 4096
	super       = 1024
	superSum    = super + 8  // offset of the features; bit 0 says that the superblock has a checksum
	superBlocks = super + 36 // offset of the number of blocks
	superMeta   = super + 40 // offset of the block number of the first inode
	inodeSlot   = 32         // inodes begin at multiples of this
	inodeData   = 16         // offset of the block number of the data, in an inode
	inlined     = 2          // the data layout in which the data follows the inode
)

// Mappable changes an EROFS file so that each file in it has its own blocks. The EROFS writer puts
// the contents of small files directly after their inodes, where gVisor cannot map them: a program
// that maps such a file gets a SIGBUS.
func Mappable(f *os.File) error {
	system, err := erofs.Open(f)
	if err != nil {
		return err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if end%block != 0 {
		return fmt.Errorf("the file system has %d bytes, which are no whole blocks", end)
	}
	meta, err := field(f, superMeta, 4)
	if err != nil {
		return err
	}
	moved := map[int64]int64{} // the offset of an inode, by the number of its new block
	at := end
	err = fs.WalkDir(system, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*erofs.Stat)
		if !ok || st.InodeLayout != inlined || st.Size == 0 {
			return nil
		}
		text, err := fs.ReadFile(system, path)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(append(text, make([]byte, block-len(text))...), at); err != nil {
			return err
		}
		moved[at/block] = int64(meta)*block + st.Ino*inodeSlot
		at += block
		return nil
	})
	if err != nil {
		return err
	}
	for data, inode := range moved {
		format, err := field(f, inode, 2)
		if err != nil {
			return err
		}
		if err := errors.Join(put(f, inode, format&^(7<<1), 2), put(f, inode+inodeData, uint32(data), 4)); err != nil {
			return err
		}
	}
	features, err := field(f, superSum, 4)
	if err != nil {
		return err
	}
	return errors.Join(put(f, superSum, features&^1, 4), put(f, superBlocks, uint32(at/block), 4))
}

func field(f *os.File, at int64, bytes int) (uint32, error) {
	var b [4]byte
	_, err := f.ReadAt(b[:bytes], at)
	return binary.LittleEndian.Uint32(b[:]), err
}

func put(f *os.File, at int64, v uint32, bytes int) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	_, err := f.WriteAt(b[:bytes], at)
	return err
}

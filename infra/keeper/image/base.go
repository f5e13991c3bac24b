package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/erofs/go-erofs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Temporary is the prefix of the keeper's temporary files. A keeper removes old files with this
// prefix.
const Temporary = "dormouse-keeper-tmp-"

// Base returns an image without programs, for a box that mounts files and folders of this machine
// at their own paths. The image has an empty file or folder at each of these paths, and the
// symbolic links on the way there. The image's user is uid and gid, with the home /tmp. The caller
// closes the image's file, which has no name.
func (s Store) Base(files []string, uid, gid int) (_ *Image, err error) {
	f, err := os.CreateTemp("", Temporary)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, os.Remove(f.Name())); err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	out := newFlat(erofs.Create(f, erofs.WithBuildTime(0, 0)), s)
	if err := out.surround(s); err != nil {
		return nil, err
	}
	text := map[string]string{
		"/etc/passwd": fmt.Sprintf("root:x:0:0::/tmp:/bin/sh\nserver:x:%d:%d::/tmp:/bin/sh\n", uid, gid),
		"/etc/group":  fmt.Sprintf("root:x:0:\nserver:x:%d:\n", gid),
	}
	for _, file := range []string{"/etc/ld.so.cache", "/etc/localtime"} { // the cache of library paths, and the time zone
		if have, err := os.ReadFile(file); err == nil {
			text[file] = string(have)
		}
	}
	for file, text := range text {
		if err := out.file(file, &tar.Header{Name: file, Size: int64(len(text)), Mode: 0o644}, strings.NewReader(text)); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		if err := out.place(file); err != nil {
			return nil, err
		}
	}
	sum, err := out.finish(f)
	if err != nil {
		return nil, err
	}
	return &Image{Sum: sum, File: f, Config: v1.Config{User: fmt.Sprintf("%d:%d", uid, gid)}}, nil
}

// place adds an empty file or folder where this machine has file, and the folders and links that lead
// to it.
func (f *flat) place(file string) error {
	at, rest := "/", strings.Split(file, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return err
		}
		_, missing := f.out.Stat(next)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(next)
			if links++; err != nil || links > 40 {
				return errors.Join(err, fmt.Errorf("%s: too many links", file))
			}
			if missing != nil {
				if err := f.out.Symlink(to, next); err != nil {
					return err
				}
			}
			if rest = append(strings.Split(to, "/"), rest...); path.IsAbs(to) {
				at = "/"
			}
			continue
		case missing == nil:
		case info.IsDir():
			if err := f.out.Mkdir(next, 0o755); err != nil {
				return err
			}
		default:
			if err := f.file(next, &tar.Header{Name: next, Mode: 0o644}, strings.NewReader("")); err != nil {
				return err
			}
		}
		at = next
	}
	return nil
}

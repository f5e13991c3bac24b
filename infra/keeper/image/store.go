// Package image stores container images, each as one EROFS file.
//
// A store is a folder that the boxes of one user share.
//
//	refs/KEY       the digest of the image that was pulled by a name; KEY is a hash of the name
//	sha256-HEX.N/  an image, in the form N: rootfs.erofs and image.json
//	lock-KEY       the lock for pulls by a name
//	tmp-KEY        the files of a pull that is under way
//
// A pull checks an image, writes it to the disk, and then moves it to its place by a rename.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/erofs/go-erofs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
)

// Store is a folder of images. Its methods may be called concurrently, also by several processes.
type Store struct {
	Dir        string
	Limits     Limits
	Nameserver string // the address of the DNS resolver for every box
	Init       []byte // a program that is added to every image
	InitPath   string // path of Init in the image, "" for none
}

// form is the version of the files that this package makes for an image.
const form = "4"

// DefaultLimits returns limits far above the images that people use: those with a browser have 2
// GB.
func DefaultLimits() Limits { return Limits{Bytes: 16 << 30, Entries: 500_000} }

// Image is an image in the store. The caller closes File.
type Image struct {
	Digest string   // digest of the manifest, "sha256:HEX"; "" for an image that Base has made
	Sum    string   // SHA-256 of File, in hexadecimal
	File   *os.File // the file system
	Config v1.Config
}

// record is the content of image.json.
type record struct {
	SHA256 string    `json:"sha256"` // SHA-256 of the file system, in hexadecimal
	Stamp  stamp     `json:"stamp"`
	Config v1.Config `json:"config"`
}

// stamp is metadata of a file that changes with each write to the file.
type stamp struct {
	Inode   uint64 `json:"inode"`
	Size    int64  `json:"size"`
	Changed int64  `json:"changed_ns"`
}

// named returns the image that was pulled by this name. The error is fs.ErrNotExist if there is
// none.
func (s Store) named(ref string) (*Image, error) {
	digest, err := os.ReadFile(s.ref(ref))
	if err != nil {
		return nil, err
	}
	return s.open(string(digest))
}

// open returns the image with this digest. If the image's file has changed, open removes the image
// and returns an error.
func (s Store) open(digest string) (*Image, error) {
	dir := s.folder(digest)
	text, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	f, err := os.Open(filepath.Join(dir, "rootfs.erofs"))
	if err != nil {
		return nil, err
	}
	if err := s.unchanged(dir, f, r); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Image{Digest: digest, Sum: r.SHA256, File: f, Config: r.Config}, nil
}

// unchanged returns an error if the file of an image is not the one in its record. unchanged reads
// the file only if the stamp differs.
func (s Store) unchanged(dir string, f *os.File, r record) error {
	now, err := stampOf(f)
	if err != nil || now == r.Stamp {
		return err
	}
	sum, err := sumOf(f)
	if err != nil {
		return err
	}
	if sum != r.SHA256 {
		return errors.Join(fmt.Errorf("the image in %s was changed on disk; the next start pulls it again", dir), os.RemoveAll(dir))
	}
	r.Stamp = now // the store was copied from another place
	return writeRecord(dir, r)
}

// Pull returns the image with this name, and fetches it if the store does not have it. If always
// is set, Pull asks the registry which image has the name now.
func (s Store) Pull(ctx context.Context, ref string, always bool) (*Image, error) {
	if !always {
		if i, err := s.named(ref); !errors.Is(err, fs.ErrNotExist) {
			return i, err
		}
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("the name of an image: %w", err)
	}
	unlock, err := s.lock(ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !always {
		if i, err := s.named(ref); !errors.Is(err, fs.ErrNotExist) { // another process has pulled it meanwhile
			return i, err
		}
	}
	img, err := remote.Image(parsed, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	i, err := s.open(digest.String())
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.make(ref, img, digest.String()); err != nil {
			return nil, fmt.Errorf("pull %s: %w", ref, err)
		}
		i, err = s.open(digest.String())
	}
	if err != nil {
		return nil, err
	}
	if err := s.name(ref, digest.String()); err != nil {
		return nil, errors.Join(err, i.File.Close())
	}
	return i, nil
}

// make builds the folder of an image under a temporary name, and then renames it.
func (s Store) make(ref string, img v1.Image, digest string) error {
	tmp := filepath.Join(s.Dir, "tmp-"+key(ref))
	if err := os.RemoveAll(tmp); err != nil { // the remains of a pull that was killed
		return err
	}
	made := filepath.Join(tmp, "made")
	if err := os.MkdirAll(made, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // after an error, the next pull by this name tries again
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return fmt.Errorf("the image is for %s/%s, and this machine is linux/%s", config.OS, config.Architecture, runtime.GOARCH)
	}
	files, err := s.download(tmp, img)
	if err != nil {
		return err
	}
	r := record{Config: config.Config}
	if r.SHA256, r.Stamp, err = s.write(filepath.Join(made, "rootfs.erofs"), tmp, files); err != nil {
		return err
	}
	if err := writeRecord(made, r); err != nil {
		return err
	}
	place := s.folder(digest)
	if err := os.Rename(made, place); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return syncFolder(s.Dir)
}

// download writes the layers to files, and returns their names, oldest layer first. download fails
// unless each layer has the size and the digest in the manifest.
func (s Store) download(tmp string, img v1.Image) ([]string, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	var files []string
	total := int64(0)
	for n, l := range layers {
		size, err := l.Size()
		if err != nil {
			return nil, err
		}
		if total += size; total > s.Limits.Bytes {
			return nil, fmt.Errorf("the image is larger than %d MB", s.Limits.Bytes>>20)
		}
		file := filepath.Join(tmp, fmt.Sprintf("layer%d", n))
		if err := save(file, l); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func save(file string, l v1.Layer) error {
	in, err := l.Compressed() // at the end the reader compares size and digest
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // io.Copy returns the errors of reading
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// write makes the file system from the layers. The argument tmp is a folder for temporary files.
func (s Store) write(file, tmp string, layers []string) (sum string, at stamp, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return "", at, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := erofs.Create(f, erofs.WithTempDir(tmp), erofs.WithBuildTime(0, 0))
	flat := newFlat(out, s)
	for n := len(layers) - 1; n >= 0; n-- {
		if err := flat.layer(layers[n]); err != nil {
			return "", at, err
		}
	}
	if err := flat.surround(s); err != nil {
		return "", at, err
	}
	if sum, err = flat.finish(f); err != nil {
		return "", at, err
	}
	if err := f.Sync(); err != nil {
		return "", at, err
	}
	at, err = stampOf(f)
	return sum, at, err
}

// # Names

func (s Store) folder(digest string) string {
	return filepath.Join(s.Dir, strings.ReplaceAll(digest, ":", "-")+"."+form)
}

func (s Store) ref(ref string) string { return filepath.Join(s.Dir, "refs", key(ref)) }

func key(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:16])
}

func (s Store) name(ref, digest string) error {
	file := s.ref(ref)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return replace(file, []byte(digest))
}

// lock waits until no other process pulls by this name, and then locks the name.
func (s Store) lock(ref string) (unlock func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, "lock-"+key(ref)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
	}
}

func writeRecord(dir string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, "image.json"), text)
}

// replace replaces a file by a rename.
func replace(file string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return syncFolder(filepath.Dir(file))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	return stamp{Inode: st.Ino, Size: st.Size, Changed: unix.TimespecToNsec(st.Ctim)}, nil
}

func sumOf(f *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

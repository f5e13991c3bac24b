package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// rig is a box with a workspace, in a store of its own.
type rig struct {
	t         *testing.T
	folder    string // of the store
	workspace string
	root      Root
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	root, err := OpenRoot(filepath.Join(dir, "key"))
	commontest.OK(t, err)
	r := &rig{t: t, folder: filepath.Join(dir, "snapshots"), workspace: filepath.Join(dir, "workspace"), root: root}
	commontest.OK(t, os.Mkdir(r.workspace, 0o755))
	return r
}

// runner returns what keeps the memory of a runner of the box.
func (r *rig) runner(tenant string, gen int64) *Kept {
	r.t.Helper()
	key, err := r.root.Tenant(tenant)
	commontest.OK(r.t, err)
	k := snapshot.NewKeeper(snapshot.Config{
		Store: snapshot.NewFolder(r.folder), Generation: gen, Key: func(owner string) string { return snapshot.Key("box", owner) },
	})
	_, err = k.Restore(r.t.Context(), "s", "s", r.t.TempDir()) // as each process does before it starts
	commontest.OK(r.t, err)
	return &Kept{Store: k, Key: key, Box: "box", Generation: gen}
}

func (r *rig) process() Process {
	return Process{Name: "s", Owner: "s", Workspace: r.workspace, Fit: Fit{"build": "1", "arch": "amd64", "cpu": "f", "page": "4096", "image": "sha256:1", "spec": "sha256:2"}, Install: "sha256:3"}
}

// chunks frames a memory as a keeper does.
func chunks(memory []byte) []byte {
	var all []byte
	for len(memory) > 0 {
		n := min(len(memory), 300_000)
		all = append(binary.BigEndian.AppendUint32(all, uint32(n)), memory[:n]...)
		memory = memory[n:]
	}
	return append(all, 0, 0, 0, 0)
}

func freezes(memory []byte) func(context.Context, io.Writer) (any, error) {
	return func(_ context.Context, to io.Writer) (any, error) {
		_, err := to.Write(chunks(memory))
		return map[string]string{"said": "hello"}, err
	}
}

// thaw returns the memory that a runner thaws, or why it does not.
func (r *rig) thaw(k *Kept, p Process) (memory []byte, state string, err error) {
	r.t.Helper()
	f, err := k.Find(p)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	image, err := f.Claim()
	if err != nil {
		return nil, "", err
	}
	var got bytes.Buffer
	err = errors.Join(copyChunks(&got, image), image.Close())
	return got.Bytes(), string(f.State), err
}

func (r *rig) image() string {
	r.t.Helper()
	all, err := filepath.Glob(filepath.Join(r.folder, "*", "*.memory"))
	commontest.OK(r.t, err)
	if len(all) != 1 {
		r.t.Fatalf("there are images %v", all)
	}
	return all[0]
}

// noise is memory that does not compress, and more than one chunk.
func noise(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b) // it never fails
	return b
}

func TestMemoryIsThawedOnceByTheNextRunner(t *testing.T) {
	t.Parallel()
	r, memory := newRig(t), noise(5*chunkBytes/2)
	for gen := range int64(3) {
		k := r.runner("t", 2*gen+1)
		size, err := k.Save(t.Context(), r.process(), freezes(memory))
		if info, failed := os.Stat(r.image()); err != nil || failed != nil || info.Size() != size {
			t.Fatal(size, err, failed)
		}
		next := r.runner("t", 2*gen+2)
		got, state, err := r.thaw(next, r.process())
		if err != nil || !bytes.Equal(got, chunks(memory)) || !strings.Contains(state, "hello") {
			t.Fatalf("%d bytes, %q, %v", len(got), state, err)
		}
		if _, _, err := r.thaw(next, r.process()); !errors.Is(err, snapshot.ErrNone) {
			t.Fatal("thawed twice:", err)
		}
	}
}

func TestAnOldImageDoesNotFit(t *testing.T) {
	h := Header{}.sealed()
	commontest.OK(t, h.fits(h))
	h.Saved = time.Now().Add(-MaxAge - time.Minute)
	if _, lost := errors.AsType[*LostError](h.fits(h)); !lost {
		t.Error("it fits")
	}
}

func TestAnImageThatDoesNotFitIsNeverThawed(t *testing.T) {
	t.Parallel()
	p := newRig(t).process()
	fit := func(key string) func(*Kept, *Process) {
		return func(_ *Kept, p *Process) {
			p.Fit = Fit{}
			for k, v := range (&rig{}).process().Fit {
				p.Fit[k] = v
			}
			p.Fit[key] += "x"
		}
	}
	cases := map[string]func(*Kept, *Process){
		"another install": func(_ *Kept, p *Process) { p.Install = "sha256:4" },
		"another process": func(_ *Kept, p *Process) { p.Name = "r" },
		"another tenant":  func(k *Kept, _ *Process) { k.Key.name = "u" },
		"a new part":      fit("more"),
	}
	for key := range p.Fit {
		cases["another "+key] = fit(key)
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			_, err := r.runner("t", 1).Save(t.Context(), r.process(), freezes(noise(1000)))
			commontest.OK(t, err)
			k, p := r.runner("t", 2), r.process()
			change(k, &p)
			got, _, err := r.thaw(k, p)
			var why *LostError
			if !errors.As(err, &why) || got != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func TestADamagedImageIsNeverThawed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	draw := rand.New(rand.NewPCG(7, 7))
	memory := noise(3 * chunkBytes / 2)
	for n := range 200 {
		gen := int64(2*n + 1)
		_, err := r.runner("t", gen).Save(t.Context(), r.process(), freezes(memory))
		commontest.OK(t, err)
		image, err := os.ReadFile(r.image())
		commontest.OK(t, err)
		at := draw.IntN(len(image))
		switch n % 4 {
		case 0: // in the header, or near it
			at = draw.IntN(700)
			fallthrough
		case 1:
			image[at] ^= byte(1 + draw.IntN(255))
		case 2:
			image = image[:at]
		case 3:
			image = append(image, byte(draw.IntN(256)))
		}
		commontest.OK(t, os.WriteFile(r.image(), image, 0o600))
		got, _, err := r.thaw(r.runner("t", gen+1), r.process())
		var why *LostError
		if !errors.As(err, &why) || got != nil {
			t.Fatalf("damage %d at %d of %d: %d bytes, %v", n, at, len(image), len(got), err)
		}
		if left, err := filepath.Glob(filepath.Join(r.folder, "*", "*.memory")); err != nil || len(left) > 0 {
			t.Fatal("the damaged image is still there", left, err)
		}
	}
}

func TestASecretIsOnNoDiskAndOpensForItsTenantOnly(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2-hunter2"
	r := newRig(t)
	state := func(_ context.Context, to io.Writer) (any, error) {
		_, err := to.Write(chunks(bytes.Repeat([]byte(secret), 1000)))
		return map[string]string{"unread": secret}, err
	}
	_, err := r.runner("t", 1).Save(t.Context(), r.process(), state)
	commontest.OK(t, err)
	commontest.OK(t, filepath.WalkDir(r.folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s has the secret", path)
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s can be read by others: %v, %v", path, info.Mode(), err)
		}
		return err
	}))
	// A thief has the file, and the key of another tenant. The header may say anything.
	other, err := r.root.Tenant("u")
	commontest.OK(t, err)
	file, err := os.Open(r.image())
	commontest.OK(t, err)
	defer func() { _ = file.Close() }() // only read
	h, raw, err := readHeader(file)
	commontest.OK(t, err)
	for _, tenant := range []string{"t", "u"} {
		h.Tenant = tenant
		o, err := newOpener(file, other, h, raw)
		commontest.OK(t, err)
		if text, err := io.ReadAll(o); len(text) > 0 || err == nil {
			t.Errorf("the key of another tenant opens %d bytes", len(text))
		}
	}
}

func TestTheRootIsMadeOnceAndForItsUserOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data", "key")
	found := make(chan string)
	for range 8 {
		go func() {
			root, err := OpenRoot(path)
			commontest.Check(t, err)
			found <- string(root.secret)
		}()
	}
	first := <-found
	for range 7 {
		commontest.EqualIn(t, "there are several roots", first, <-found)
		commontest.EqualIn(t, "there are several roots", keyBytes, len(first))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	commontest.OK(t, os.WriteFile(path, []byte("short"), 0o600))
	if _, err := OpenRoot(path); err == nil {
		t.Error("a short key is taken")
	}
}

func TestWhatIsNotFrozenOrTooLargeIsNotKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.runner("t", 1)
	_, err := k.Save(t.Context(), r.process(), freezes(noise(1000)))
	commontest.OK(t, err)
	earlier := r.image()
	failed := errors.New("no")
	if _, err := k.Save(t.Context(), r.process(), func(context.Context, io.Writer) (any, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	piece := noise(maxChunk)
	_, err = k.Save(t.Context(), r.process(), func(_ context.Context, to io.Writer) (any, error) {
		for range MaxBytes/maxChunk + 2 {
			if _, err := to.Write(piece); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	var why *LostError
	if !errors.As(err, &why) || r.image() != earlier {
		t.Error(err, r.image())
	}
}

// peer is a keeper that says and hears what a test wants.
func peer(t *testing.T, script func(conn net.Conn, in *json.Decoder)) *Control {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		script(theirs, json.NewDecoder(theirs))
		_ = theirs.Close()
	}()
	t.Cleanup(func() { _ = ours.Close(); <-done })
	return newControl(ours)
}

func TestTheRunnerBelievesNoKeeperThatBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	image := chunks(noise(400_000))
	for name, test := range map[string]struct {
		says string // to freeze
		want string // in the error, "" for none
	}{
		"whole":        {`{"image":true}` + "\n" + string(image) + `{"frozen":true}` + "\n", ""},
		"failed":       {`{"failed":"the sentry said\nno"}` + "\n", "the sentry said"},
		"cut":          {`{"image":true}` + "\n" + string(image[:1000]), "is cut"},
		"a huge chunk": {`{"image":true}` + "\n\xff\xff\xff\xff", "bytes"},
		"gone":         {"", "ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := peer(t, func(conn net.Conn, in *json.Decoder) {
				var m message
				if err := in.Decode(&m); err != nil || !m.Freeze {
					t.Error(m, err)
				}
				_, _ = io.WriteString(conn, test.says) // the runner may be gone
			})
			var got bytes.Buffer
			err := c.Freeze(t.Context(), &got)
			switch {
			case test.want == "" && (err != nil || !bytes.Equal(got.Bytes(), image)):
				t.Errorf("%d bytes, %v", got.Len(), err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")):
				t.Error(err)
			}
		})
	}
}

func TestAKeeperThatSaysNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	c, theirs, err := Pair()
	commontest.OK(t, err)
	defer func() { _ = theirs.Close() }()
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := c.Fit(ctx); err == nil {
		t.Error("a fit came from nowhere")
	}
}

package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// hosted stores the installs of a box as the host does, without a relay.
type hosted struct {
	bucket *bucket.Bucket
	box    storage.BoxID
}

func (h hosted) fault(err error) error {
	switch {
	case errors.Is(err, storage.NotFound):
		return errors.Join(snapshot.ErrNone, err)
	case errors.Is(err, storage.Fenced):
		return errors.Join(snapshot.ErrStale, err)
	}
	return err
}

func (h hosted) Newest(ctx context.Context, owner string, _ int64) (string, string, time.Time, error) {
	get, sum, saved, err := h.bucket.Newest(ctx, h.box, owner)
	return get, sum, saved, h.fault(err)
}

func (h hosted) Room(ctx context.Context, owner string, gen, size int64, sum string) (snapshot.Room, error) {
	object, put, header, err := h.bucket.Room(ctx, h.box, owner, storage.Generation(gen), size, sum)
	room := snapshot.Room{Object: object, URL: put, Header: http.Header{}}
	for name, value := range header {
		room.Header.Set(name, value)
	}
	return room, h.fault(err)
}

func (h hosted) Commit(ctx context.Context, owner string, gen int64, object string) error {
	return h.fault(h.bucket.Commit(ctx, h.box, owner, storage.Generation(gen), object))
}

func (h hosted) Forget(ctx context.Context, owner string, gen int64) error {
	return h.fault(h.bucket.Forget(ctx, h.box, owner, storage.Generation(gen)))
}

// tampering is the network between a box and S3. If it is on, it changes the last byte of
// everything that a box fetches. It keeps the last archive that a box sent.
type tampering struct {
	on   bool
	sent []byte
}

func (t *tampering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		t.sent, r.Body = text, io.NopCloser(bytes.NewReader(text))
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !t.on || r.Method != http.MethodGet {
		return answer, err
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close() // all of it is read
	text[len(text)-1]++
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, err
}

// keeping has the boxes of a test keep their installs in S3. Each call stands for another
// runner.
func (i *installs) keeping(s3 *buckettest.S3, box storage.BoxID, gen int64, on *tampering) *keptInstalls {
	b := bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Prefix: "snapshots", Region: buckettest.Region, Endpoint: s3.Endpoint()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: buckettest.KeyID, SecretAccessKey: buckettest.Secret, SessionToken: buckettest.Token}, nil
		}),
	})
	return &keptInstalls{
		store: snapshot.NewSigned(snapshot.SignedConfig{Host: hosted{b, box}, Temp: i.at.work, Client: &http.Client{Transport: on}, Pauses: []time.Duration{}}),
		key:   func(name string) string { return "install-" + name }, gen: gen, temp: i.at.work, log: slog.New(slog.DiscardHandler),
	}
}

// wake stages a server in a box that begins with an empty cache, and waits for what it
// uploads. installed reports whether the box has asked the registry for anything.
func (i *installs) wake(k *keptInstalls, text string) (installed bool) {
	i.t.Helper()
	i.forget()
	i.at.installs = k
	before := i.from.asked.Load()
	l, err := i.stage(text)
	commontest.OK(i.t, err)
	for k.busy() { // what uploads ends by itself
		time.Sleep(time.Millisecond)
	}
	if info, err := os.Stat(l.Command); err != nil || info.Mode()&0o111 == 0 {
		i.t.Errorf("%s cannot be executed: %v", l.Command, err)
	}
	return i.from.asked.Load() != before
}

func published(t *testing.T) (*installs, *registry) {
	r := newRegistry(t)
	r.publish("srv", "1.0.0", map[string]any{"bin": "cli.js"}, file("package/cli.js", "#!/usr/bin/env node\n"))
	r.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{"py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n"}))
	return newInstalls(t, r), r
}

func TestABoxUnpacksWhatItInstalledBefore(t *testing.T) {
	for name, server := range map[string]string{
		"npm": `{"command": "npx", "args": ["-y", "srv"], "env": {"API_KEY": "canary-of-the-server"}}`, "pypi": `{"command": "uvx", "args": ["py-srv"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			i, _ := published(t)
			t.Setenv("npm_config__authToken", "canary-of-npm")
			s3, on := buckettest.New(t), &tampering{}
			if !i.wake(i.keeping(s3, "acme/s", 1, on), server) || len(s3.Objects()) != 2 {
				t.Fatalf("the first start installs and keeps: %v", s3.Requests())
			}
			if files := unpackedText(t, on.sent); strings.Contains(files, "canary") || name == "npm" && !strings.Contains(files, "cli.js") {
				t.Errorf("the archive has %s", files)
			}
			commontest.EqualIn(t, "the second start installs", false, i.wake(i.keeping(s3, "acme/s", 2, on), server))
			on.on = true
			commontest.EqualIn(t, "it installs in the place of changed bytes", true, i.wake(i.keeping(s3, "acme/s", 3, on), server))
			on.on = false
			if i.wake(i.keeping(s3, "acme/s", 4, on), server) || len(s3.Objects()) != 2 {
				t.Errorf("after changed bytes nothing is kept: %v", s3.Objects())
			}
			if name == "npm" && (!i.wake(i.keeping(s3, "evil/s", 1, on), server) || len(s3.Objects()) != 4) {
				t.Errorf("another tenant was given the install: %v", s3.Objects())
			}
		})
	}
}

// unpackedText returns the names and texts of the files in an archive.
func unpackedText(t *testing.T, archive []byte) string {
	t.Helper()
	to := t.TempDir()
	commontest.OK(t, snapshot.Unpack(t.Context(), bytes.NewReader(archive), to, installLimits()))
	var all strings.Builder
	commontest.OK(t, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all.WriteString(path + "\n" + string(data))
		return err
	}))
	return all.String()
}

func TestWhereInstallsAreKept(t *testing.T) {
	t.Parallel()
	host := keeping{host: &asked{}}
	for _, c := range []struct {
		where      string
		keep       keeping
		local      bool
		fine, kept bool
	}{
		{"", host, false, true, true},
		{"", host, true, true, false}, // the cache of this machine serves every box
		{"", keeping{}, false, true, false},
		{"folder:/x", keeping{}, true, true, true},
		{"folder:x", keeping{}, false, false, false},
		{"on", host, false, false, false},
	} {
		k, err := c.keep.installsOf(c.where, c.local, "b", 1, "/tmp", nil)
		commontest.Equal(t, c.fine, err == nil)
		commontest.Equal(t, c.kept, k != nil)
	}
}

// A runner that is invited again and again must not collect the locks of ended boxes.
func TestABoxThatHasEndedReleasesItsInstalls(t *testing.T) {
	i, _ := published(t)
	log := slog.New(slog.DiscardHandler)
	p := &prepared{box: newBox(parsed(t, `{"command": "npx", "args": ["-y", "srv"]}`), i.setup(), log), work: i.at.work, release: func() error { return nil }, log: log}
	if _, err := p.box.provisioner.Provision(t.Context(), "p", nil, nil); err != nil {
		t.Fatal(err)
	}
	tidied := func() int {
		t.Helper()
		n, err := provision.Tidy(t.Context(), i.at.cache, provision.Keep{Bytes: 1})
		commontest.OK(t, err)
		_ = os.Remove(filepath.Join(i.at.cache, ".tidied")) // or the next Tidy would do nothing
		return n
	}
	if n := tidied(); n != 0 {
		t.Fatalf("while its box runs, Tidy removes the install (%d)", n)
	}
	p.remove()
	commontest.EqualIn(t, "after its box has ended, Tidy", 1, tidied())
}

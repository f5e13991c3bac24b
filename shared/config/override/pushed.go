// Package override keeps a servers file in the store of an AWS stack, in place of the file that was
// deployed with the Lambda functions. An operator changes it without a deployment.
package override

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// MaxFile is the largest size of a pushed file, in bytes.
const MaxFile = 192 << 10

// File is a servers file in the store.
type File struct {
	Version int64     `json:"version"` // 1 for the first one; each push and each withdrawal adds 1; 0 means there was none yet
	Name    string    `json:"name"`    // base name of the file, for error messages
	By      string    `json:"by"`      // the operator who pushed the file, in words for people
	At      time.Time `json:"at"`
	Text    []byte    `json:"-"` // as it was pushed; empty means that the Lambda functions use their own file
}

func key() storage.ValueKey {
	return storage.ValueKey{Scope: storage.ValueOfServer, Name: "servers file"}
}

// Load reads the file with one read. Errors: Unavailable; Internal for a value that this
// release cannot read.
func Load(ctx context.Context, store storage.Values) (File, error) {
	f, _, err := load(ctx, store)
	return f, err
}

func load(ctx context.Context, store storage.Values) (f File, rev int64, err error) {
	v, err := store.LoadValue(ctx, key())
	if err != nil || len(v.Data) == 0 {
		return File{}, v.Rev, err
	}
	head, text, _ := bytes.Cut(v.Data, []byte{'\n'})
	if err := json.Unmarshal(head, &f); err != nil {
		return File{}, 0, storage.Errorf(storage.Internal, "the pushed servers file cannot be read; push it again").Because(err)
	}
	f.Text = text
	return f, v.Rev, nil
}

// Save stores a file under the next version, and returns it with that version. It does not check the
// text; see [File.Check].
//
// Errors: TooLarge over [MaxFile]; Conflict if another operator pushes at the same time; Unavailable.
func Save(ctx context.Context, store storage.Values, f File) (File, error) {
	if len(f.Text) > MaxFile {
		return File{}, storage.Errorf(storage.TooLarge, "the servers file has %d bytes; at most %d can be pushed", len(f.Text), MaxFile)
	}
	before, rev, err := load(ctx, store)
	if err != nil {
		return File{}, err
	}
	f.Version = before.Version + 1
	head, err := json.Marshal(f)
	if err != nil {
		return File{}, err
	}
	_, err = store.SaveValue(ctx, storage.Value{Key: key(), Rev: rev, Data: append(append(head, '\n'), f.Text...)})
	if storage.CodeOf(err) == storage.Conflict {
		return File{}, storage.Errorf(storage.Conflict, "somebody else has pushed a servers file at this moment; look at it, and push again")
	}
	return f, err
}

// Catalog parses the file as the Lambda functions do: no `${VAR}` has a value, and nothing is read
// from a folder. Errors: those of serversfile.Parse.
func (f File) Catalog() (*serversfile.File, error) {
	c, _, err := serversfile.Parse(f.Text, filepath.Base(f.Name), func(string) (string, bool) { return "", false })
	return c, err
}

// Check returns nil for a file that the Lambda functions can serve as a whole. Errors: Invalid with
// the first mistake, or with the first secret that stands in the file in the clear.
func (f File) Check() error {
	c, err := f.Catalog()
	if err != nil {
		return storage.Errorf(storage.Invalid, "%v", err)
	}
	if files := c.Files(); len(files) > 0 {
		return storage.Errorf(storage.Invalid, "the file names %s, which functions do not have: write its variables into env", files[0])
	}
	if rejected := c.Rejected(); len(rejected) > 0 {
		return storage.Errorf(storage.Invalid, "%v (functions have none of your variables: write a default, or \"ssm:/PATH/NAME\" for a secret in AWS Systems Manager)", rejected[0])
	}
	for _, name := range c.Names() {
		server, _ := c.Server(name)
		if where := secretIn(server); where != "" {
			return storage.Errorf(storage.Invalid, "server %q: %s looks like a secret, and the table would keep it in the clear: "+
				"put it into AWS Systems Manager, and write \"ssm:/PATH/NAME\" in env", name, where)
		}
	}
	return nil
}

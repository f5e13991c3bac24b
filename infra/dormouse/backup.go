package dormouse

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/backup"
)

// inFolder has the flags of a command that uses the files of a data folder, and not the API.
type inFolder struct {
	dataFlag
	printing
}

type backupCommand struct {
	File string `arg:"" type:"path" help:"The file to write, such as dormouse.tar.gz; an older one of this name is replaced. It holds secrets."`
	storeFlag
	inFolder
}

// Run writes the backup to a temporary file, and renames it when it is complete.
func (c *backupCommand) Run(t *terminal) (err error) {
	ctx, stop := interruptible()
	defer stop()
	if c.Data, err = c.folder(ctx); err != nil {
		return err
	}
	if !exists(c.Data) {
		return fmt.Errorf("there is no data folder %s: name it with --data", c.Data)
	}
	store, _, err := local.SQLite(c.Store, c.Data)
	if err != nil {
		return err
	}
	part := c.File + ".new"
	_ = os.Remove(part) // may be left from a backup that was killed, or belong to another user, who could then read this backup
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s, err := backup.Write(ctx, c.Data, store, f)
	if err = cmp.Or(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(part, c.File)
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("no backup was made: %w", err)
	}
	if err := c.show(t, s, func() error {
		_, err := fmt.Fprintf(t.out, "%s has %d files, %.1f MB unpacked. servers.json and .env are not in it.\n", c.File, s.Files, float64(s.Bytes)/1e6)
		return err
	}); err != nil || s.Unread == nil {
		return err
	}
	return fmt.Errorf("the backup is not complete, because these cannot be read; make them readable for this user, or back up as root: %s", strings.Join(s.Unread, ", "))
}

type restoreCommand struct {
	File string `arg:"" type:"existingfile" help:"The file of dormouse backup."`
	inFolder
}

// Run replaces the content of the data folder by that of the backup.
func (c *restoreCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	s, kept, err := backup.Read(ctx, c.Data, f)
	if err != nil {
		return err
	}
	return c.show(t, s, func() error {
		_, err := fmt.Fprintf(t.out, "%s has %d files again. What was there before is in %s.\nA key that was revoked after the backup is good again: revoke it again.\n", c.Data, s.Files, kept)
		if s.Disowned > 0 {
			_, err = fmt.Fprintf(t.out, "%d files and folders had another owner, and now have this user: restore as root to keep the owners.\n", s.Disowned)
		}
		return err
	})
}

//go:build e2e

package dormouse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A workspace outlives the boxes of its session, and goes with the session. Function programs keep
// it in a bucket, and a machine in its data folder.
func TestE2EWorkspaceIsKept(t *testing.T) {
	t.Parallel()
	for name, bucket := range map[string]bool{"in the data folder": false, "in a bucket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": {"-calls", "${workspaceFolder}/notes"}})
			kept := func() int {
				all, err := filepath.Glob(filepath.Join(m.data, "snapshots", "*", "current"))
				commontest.OK(t, err)
				return len(all)
			}
			if bucket {
				s3 := buckettest.New(t)
				kept = func() int { return (len(s3.Objects()) + 1) / 2 } // the last snapshot and the pointer to it
				m.asPrograms().env = append(
					m.env, "DORMOUSE_SNAPSHOTS=s3:kept/snapshots?region="+buckettest.Region+"&endpoint="+s3.Endpoint(),
					"AWS_ACCESS_KEY_ID="+buckettest.KeyID, "AWS_SECRET_ACCESS_KEY="+buckettest.Secret, "AWS_SESSION_TOKEN="+buckettest.Token,
				)
			}
			m.start(sleepy()...)
			c := m.session("one")
			var want []string
			for _, tag := range []string{"first", "second"} {
				want = append(want, tag)
				c.text("count", fmt.Sprintf(`{"tag":%q}`, tag))
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/notes", m.only("stdio").pid))
				commontest.OK(t, err)
				commontest.SameIn(t, "the server has", want, strings.Fields(string(text)))
				m.asleep()
			}
			commontest.EqualIn(t, "snapshots", 1, kept())
			c.leave()
			// The box sleeps, so the sweep removes its snapshot. A machine sweeps at its start.
			m.interrupt()
			m.start(sleepy()...)
			m.eventually(patience, "the snapshot of an ended session is gone", func() bool { return kept() == 0 })
		})
	}
}

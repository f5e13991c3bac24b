// Package commontest has what tests of several packages share.
package commontest

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Lines holds log lines that several goroutines write. The zero value is empty.
type Lines struct {
	mu  sync.Mutex
	all strings.Builder
}

// Write implements io.Writer. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// String returns what was written so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Take returns what was written since the last Take, and forgets it.
func (l *Lines) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.all.String()
	l.all.Reset()
	return text
}

// RowsHaveTests fails the test of each acceptance row that names a test which does not
// exist. A name is that of a test in folder, or a folder, a colon and the test there.
// Folders are below root, with slashes.
func RowsHaveTests(t *testing.T, root, folder string, rows map[string][]string) {
	t.Helper()
	sources := map[string]string{}
	for row, names := range rows {
		if len(names) == 0 {
			t.Errorf("%s has no test", row)
		}
		for _, name := range names {
			in, test, elsewhere := strings.Cut(name, ":")
			if !elsewhere {
				in, test = folder, name
			}
			if _, read := sources[in]; !read {
				sources[in] = testsOf(t, filepath.Join(root, filepath.FromSlash(in)))
			}
			if !strings.Contains(sources[in], "func "+test+"(") {
				t.Errorf("%s: there is no %s in %s", row, test, in)
			}
		}
	}
}

// testsOf returns the text of all tests of a folder.
func testsOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

func TestWhatIsKeptOfInstalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		age, mb string
		want    provision.Keep
		ok      bool
	}{
		{"", "", provision.Keep{Age: 30 * 24 * time.Hour, Bytes: 10 << 30}, true},
		{"48h", "100", provision.Keep{Age: 48 * time.Hour, Bytes: 100 << 20}, true},
		{"0s", "0", provision.Keep{}, true},
		{"-1s", "", provision.Keep{}, false},
		{"30", "", provision.Keep{}, false},
		{"", "-1", provision.Keep{}, false},
		{"", "1GB", provision.Keep{}, false},
		{"", "9999999999999999", provision.Keep{}, false},
	} {
		if got, err := newKeep(c.age, c.mb); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q, %q: %+v, %v", c.age, c.mb, got, err)
		}
	}
}

func TestCacheIsWhereItCanBeWritten(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file") // no folder can be made below it, by root neither
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(root, "named")
	if got, err := cacheFolder(named, ""); got != named || err != nil {
		t.Error(got, err)
	}
	if got, err := cacheFolder(filepath.Join(file, "x"), root); err == nil {
		t.Errorf("%s was taken in the place of one that was named", got)
	}
	none, data := filepath.Join(file, "a"), filepath.Join(root, "data")
	for _, c := range []struct {
		folders []string
		want    string
	}{
		{[]string{named, data}, named}, {[]string{none, data}, data}, {[]string{none, filepath.Join(file, "b")}, ""},
	} {
		got, err := firstWritable(c.folders)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("of %v: %s, %v", c.folders, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "give one by DORMOUSE_CACHE: mkdir "+file) {
			t.Error("it does not say why, and what to do:", err)
		}
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	if got := cacheFolders(data); got[len(got)-1] != filepath.Join(data, "cache") {
		t.Error(got)
	}
}

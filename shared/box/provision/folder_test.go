package provision

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestCacheIsWhereItCanBeWritten(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file") // even root cannot make a folder below a file
	commontest.OK(t, os.WriteFile(file, nil, 0o600))
	named := filepath.Join(root, "named")
	if got, err := CacheFolder(named, ""); got != named || err != nil {
		t.Error(got, err)
	}
	if got, err := CacheFolder(filepath.Join(file, "x"), root); err == nil {
		t.Errorf("%s was taken in the place of one that was named", got)
	}
	none, data := filepath.Join(file, "a"), filepath.Join(root, "data")
	for _, c := range []struct {
		folders []string
		want    string
	}{
		{[]string{named, data}, named}, {[]string{none, data}, data}, {[]string{none, filepath.Join(file, "b")}, ""},
	} {
		got, err := firstWritable(c.folders...)
		commontest.Equal(t, c.want, got)
		commontest.Equal(t, c.want != "", err == nil)
		if want := fmt.Sprintf("the cache %s cannot be written by uid %d: mkdir %s: not a directory", c.folders[0], os.Geteuid(), file); err != nil &&
			(!strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), ": set DORMOUSE_CACHE to a folder that can be written")) {
			t.Error("it does not say why, and what to do:", err)
		}
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	if got := cacheFolders(data); got[len(got)-1] != filepath.Join(data, "cache") {
		t.Error(got)
	}
}

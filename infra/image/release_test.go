//go:build release

package image_test

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// release returns the folder with the files of a release, which make test-release makes.
func release(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("DORMOUSE_TEST_RELEASE")
	if folder == "" {
		t.Fatal("DORMOUSE_TEST_RELEASE names no folder: run make test-release")
	}
	return folder
}

// archives returns the path of each archive by its platform, such as linux_arm64.
func archives(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(release(t), "dormouse_*.tar.gz"))
	commontest.OK(t, err)
	all := map[string]string{}
	for _, path := range paths {
		parts := strings.Split(strings.TrimSuffix(filepath.Base(path), ".tar.gz"), "_")
		all[strings.Join(parts[len(parts)-2:], "_")] = path
	}
	return all
}

// unpack writes the files of an archive into an empty folder and returns it with the name
// and the mode of each file.
func unpack(t *testing.T, path string) (folder string, files []string) {
	t.Helper()
	f, err := os.Open(path)
	commontest.OK(t, err)
	defer func() { _ = f.Close() }() // nothing was written
	z, err := gzip.NewReader(f)
	commontest.OK(t, err)
	folder = t.TempDir()
	for archive := tar.NewReader(z); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return folder, files
		}
		commontest.OK(t, err)
		data, err := io.ReadAll(archive)
		commontest.OK(t, err)
		files = append(files, head.FileInfo().Mode().String()+" "+head.Name)
		commontest.OK(t, os.WriteFile(filepath.Join(folder, filepath.Base(head.Name)), data, head.FileInfo().Mode().Perm()))
	}
}

// commit returns the commit of the working tree.
func commit(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	commontest.OK(t, err)
	return strings.TrimSpace(string(out))
}

// paths are the packages of the programs.
var paths = map[string]string{"dormouse": "github.com/dormouse-mcp/dormouse/infra/cmd/dormouse", "dormouse-keeper": "github.com/dormouse-mcp/dormouse/infra/keeper/dormouse-keeper"}

func TestEachArchiveHasTheProgramsOfItsPlatform(t *testing.T) {
	head, all := commit(t), archives(t)
	for _, platform := range []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"} {
		path, ok := all[platform]
		if !ok {
			t.Errorf("there is no archive for %s", platform)
			continue
		}
		folder, files := unpack(t, path)
		slices.Sort(files)
		goos, goarch, _ := strings.Cut(platform, "_")
		want := []string{"-rw-r--r-- LICENSE", "-rw-r--r-- README.md"}
		programs := []string{"dormouse"}
		if goos == "linux" {
			programs = append(programs, "dormouse-keeper")
		}
		for _, name := range programs {
			want = append(want, "-rwxr-xr-x "+name)
			info, err := buildinfo.ReadFile(filepath.Join(folder, name))
			commontest.OK(t, err)
			got := map[string]string{"path": info.Path}
			for _, s := range info.Settings {
				got[s.Key] = s.Value
			}
			for key, want := range map[string]string{
				"path": paths[name], "GOOS": goos, "GOARCH": goarch, "CGO_ENABLED": "0", "-trimpath": "true", "vcs.revision": head,
			} {
				commontest.EqualIn(t, fmt.Sprintf("%s %s: %s", platform, name, key), want, got[key])
			}
		}
		commontest.SameIn(t, platform, want, files)
	}
	commontest.EqualIn(t, fmt.Sprintf("archives %v", all), 4, len(all))
}

// An unpacked archive starts servers from images: dormouse finds the keeper beside itself, and
// the keeper can run here.
func TestTheArchiveHasAKeeperThatItsProgramFinds(t *testing.T) {
	unpacked, _ := unpack(t, archives(t)["linux_"+runtime.GOARCH])
	file := filepath.Join(t.TempDir(), "servers.json")
	commontest.OK(t, os.WriteFile(file, []byte(`{"mcpServers":{"a":{"command":"docker","args":["run","-i","img"],"x-dormouse":{"box":{"sealed":true}}}}}`), 0o600))
	out, _ := exec.CommandContext(t.Context(), filepath.Join(unpacked, "dormouse"), "doctor", "--servers", file).CombinedOutput() // other findings are not ours
	commontest.Contains(t, "doctor", filepath.Join(unpacked, "dormouse-keeper"), string(out))
	if out, err := exec.CommandContext(t.Context(), filepath.Join(unpacked, "dormouse-keeper"), "probe").CombinedOutput(); err != nil {
		t.Errorf("probe: %v, %s", err, out)
	}
}

// The program of the archive needs no program beside it and no home folder, and knows the
// commit that it is built from.
func TestTheArchiveWorksAloneInAnEmptyFolder(t *testing.T) {
	unpacked, _ := unpack(t, archives(t)["linux_"+runtime.GOARCH])
	version := worksAlone(t, filepath.Join(unpacked, "dormouse"))
	if !strings.Contains(version, commit(t)[:12]) || strings.Contains(version, "devel") {
		t.Errorf("dormouse version: %q", version)
	}
}

package box

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"
)

// Fit returns everything that the memory of a box depends on, by name. The memory can be thawed
// only in a box for which all values are equal. The argument more, encoded as JSON, is anything
// else that must be equal.
//
//	build  the version of gVisor, and the build id or digest of this program
//	arch   the architecture of the processor
//	cpu    its features
//	page   the size of a page, in bytes
//	spec   a digest of the Spec and of more
func (s Spec) Fit(more any) (map[string]string, error) {
	build, err := build()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal([]any{describe(s), s.MemoryMB, s.CPUs, more})
	if err != nil {
		return nil, err
	}
	cpuid.Initialize()
	var cpu []string
	for _, f := range cpuid.AllFeatures() {
		if cpuid.HostFeatureSet().HasFeature(f) {
			cpu = append(cpu, f.String())
		}
	}
	sum := sha256.Sum256(text)
	return map[string]string{
		"build": build, "arch": runtime.GOARCH, "cpu": strings.Join(cpu, " "), "page": strconv.Itoa(os.Getpagesize()),
		"spec": "sha256:" + hex.EncodeToString(sum[:]),
	}, nil
}

// build returns the version of gVisor, and the Go build id of this program. For a program without a
// build id, it returns a digest of the program, which takes longer.
func build() (string, error) {
	gvisor := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gvisor.dev/gvisor" {
				gvisor = m.Version
			}
		}
	}
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer func() { _ = own.Close() }() // nothing was written
	program, err := elf.NewFile(own)
	if err != nil {
		return "", err
	}
	const head = 16 // bytes of the ELF note before the id
	if note := program.Section(".note.go.buildid"); note != nil && note.Size > head+40 {
		id, err := note.Data()
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("gvisor %s go:%s", gvisor, bytes.TrimRight(id[head:], "\x00")), nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(own, 0, 1<<62)); err != nil {
		return "", err
	}
	return fmt.Sprintf("gvisor %s sha256:%x", gvisor, sum.Sum(nil)), nil
}

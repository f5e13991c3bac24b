package box

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/keeper/image"
	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"
)

// Usable returns an error if this program was built with cgo. A sentry cannot load shared
// libraries.
func Usable() error {
	if config.CgoEnabled {
		return errors.New("this program was built with cgo: build it with CGO_ENABLED=0")
	}
	return nil
}

// Probe runs a box with a program that exits at once. If this system cannot run boxes, the error
// says why.
func Probe() error {
	empty, err := smallest()
	if err != nil {
		return err
	}
	defer func() { _ = empty.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	b, err := Start(Spec{Image: empty, Args: []string{"/end"}, Stdio: [3]*os.File{null, null, null}})
	if err == nil {
		var code int
		if code, err = b.Wait(); err == nil && code != 0 {
			err = fmt.Errorf("the box did not run: its program ended with %d", code)
		}
	}
	return err
}

// lacks returns the reason, in parentheses, why this system cannot run boxes, "" if it is not
// known.
func lacks() string {
	const nobody = 1 << 30 // no process has this pid
	if err := unix.PtraceAttach(nobody); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Sprintf(" (this system refuses ptrace: %v)", err)
	}
	text, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if scope := strings.TrimSpace(string(text)); err == nil && scope > "1" {
		return fmt.Sprintf(" (kernel.yama.ptrace_scope is %s: set it to 1 or less)", scope)
	}
	return ""
}

// smallest returns an image with one program, /end, which exits with code 0.
func smallest() (_ *os.File, err error) {
	program, err := programOf(map[string][]byte{
		"amd64": {0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05},               // mov eax, 60; xor edi, edi; syscall
		"arm64": {0xa8, 0x0b, 0x80, 0xd2, 0, 0, 0x80, 0xd2, 1, 0, 0, 0xd4}, // mov x8, #93; mov x0, #0; svc #0
	})
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp("", image.Temporary)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, os.Remove(f.Name()))
	}()
	w := erofs.Create(f)
	file, err := w.Create("/end")
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(program); err != nil {
		return nil, err
	}
	for _, dir := range []string{"/proc", "/dev", "/sys", "/tmp"} {
		err = errors.Join(err, w.Mkdir(dir, 0o755))
	}
	err = errors.Join(err, file.Chmod(0o755), file.Close(), w.Close())
	if err != nil {
		return nil, err
	}
	return f, image.Mappable(f)
}

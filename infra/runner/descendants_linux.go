package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// hide keeps other processes of this user from reading this process's environment and memory, and
// from attaching to it. Programs that this process executes are not protected.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the runner from its servers: %w", err)
	}
	return nil
}

// becomeSubreaper makes this process the parent of all orphans among its descendants, and reaps
// them.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	proc.Reap()
	return nil
}

const endWithin = 2 * time.Second

// endDescendants kills and reaps all descendants of this process. No other code may be waiting for
// a child.
func endDescendants() error {
	for until := time.Now().Add(endWithin); ; time.Sleep(5 * time.Millisecond) {
		left, err := descendants(os.Getpid())
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d of the box: %w", pid, err)
			}
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("processes %v of the box do not end", left)
		}
	}
}

func descendants(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// The process name in parentheses may contain anything. After the name come the state and
		// the parent.
		at := strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[at+1:]))
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if len(fields) < 2 || err1 != nil {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := slices.Clone(children[pid])
	for n := 0; n < len(all); n++ {
		all = append(all, children[all[n]]...)
	}
	return all, nil
}

//go:build !aws

package pprofsock

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"
)

// Serve listens on NAME-PID.sock in a folder, for [Take], until the program ends. With an empty
// folder it does nothing. Anyone who can reach the folder can profile the program, so its owner
// must restrict access.
func Serve(folder, name string) error {
	if folder == "" {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "unix", filepath.Join(folder, fmt.Sprintf("%s-%d.sock", name, os.Getpid())))
	if err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
		}
	}()
	return nil
}

// answer takes one profile and sends it. Serve calls it for one connection at a time,
// because a process has one CPU profiler.
func answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // a caller that sends no request must not block the next one
	cpu, err := asked(conn)
	if err != nil {
		return
	}
	if cpu == 0 {
		_ = pprof.WriteHeapProfile(conn) // after an error the profile is cut off, which the caller of Take notices
		return
	}
	if pprof.StartCPUProfile(conn) == nil {
		<-time.After(cpu)
		pprof.StopCPUProfile()
	}
}

//go:build !aws

package profile

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"
)

// Serve listens on NAME-PID.sock in a folder, for [Take], until the program ends; with an empty
// folder it does nothing. Who can reach the folder can profile the program: its owner keeps it to
// itself. A program that is killed leaves its socket there.
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

// answer takes one profile. One at a time: a process has one profiler of the CPU.
func answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // only the request is read
	cpu, err := asked(conn)
	if err != nil {
		return
	}
	if cpu == 0 {
		_ = pprof.WriteHeapProfile(conn) // whoever asked sees that it is cut off
		return
	}
	if pprof.StartCPUProfile(conn) == nil {
		<-time.After(cpu)
		pprof.StopCPUProfile()
	}
}

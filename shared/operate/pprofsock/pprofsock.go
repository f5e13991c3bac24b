// Package pprofsock takes CPU and heap profiles of running programs of Dormouse on this machine.
// Programs built for AWS (-tags aws) do not contain the package's server. Other programs serve
// profiles only if they are given a folder.
package pprofsock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// Environment is the environment variable with the folder that main functions pass to
// [Serve].
const Environment = "DORMOUSE_PROFILE"

// longest is the longest CPU profile.
const longest = 10 * time.Minute

// Take asks the program behind a socket of [Serve] for a profile and writes it to w in pprof's
// format. It takes a CPU profile of length cpu, at most 10 minutes, or a heap profile if cpu is 0.
func Take(ctx context.Context, socket string, cpu time.Duration, w io.Writer) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, cpu); err != nil {
		return err
	}
	_, err = io.Copy(w, conn)
	return err
}

// asked returns the length of the profile that Take asks for.
func asked(conn net.Conn) (time.Duration, error) {
	line, err := bufio.NewReader(io.LimitReader(conn, 64)).ReadString('\n')
	if err != nil {
		return 0, err
	}
	cpu, err := time.ParseDuration(line[:len(line)-1])
	if err != nil || cpu < 0 || cpu > longest {
		return 0, fmt.Errorf("want a time up to %s, not %q", longest, line)
	}
	return cpu, nil
}

// Package profile lets somebody on this machine take CPU and heap profiles of a program of Dormouse
// while it works: functions and runners come and go, and are stopped without notice. It is not in
// programs that are built for AWS (-tags aws), and does nothing unless it is given a folder.
package profile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// Environment is the variable with the folder that mains give to [Serve].
const Environment = "DORMOUSE_PROFILE"

// longest bounds a CPU profile.
const longest = 10 * time.Minute

// Take asks the program behind a socket of [Serve] for a profile and writes it to w, in pprof's
// format: of the CPU for so long, or of the heap at once if that is 0. A program that ends meanwhile
// leaves it cut off.
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

// asked reads what Take wrote.
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

package dormouse

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

// serviceOf sets cfg for dormouse run under a service manager: to use the sockets that the service
// manager has opened, and to notify it of the state.
func serviceOf(cfg *local.Config, exitWhenIdle time.Duration) (err error) {
	if cfg.Opened, err = activated(); err != nil {
		return err
	}
	if exitWhenIdle < 0 || exitWhenIdle > 0 && len(cfg.Opened) == 0 {
		return errors.New("--exit-when-idle: nobody would start it again, because no service manager holds the sockets; see docs/vps.md for systemd's")
	}
	if exitWhenIdle > 0 && exitWhenIdle < time.Second {
		return fmt.Errorf("--exit-when-idle is %v; want a second or more", exitWhenIdle)
	}
	cfg.ExitWhenIdle = exitWhenIdle
	// Errors are ignored, because the service manager also notices the state in other ways.
	cfg.Ready = func(string) { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
	cfg.Stopping = func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }
	return nil
}

// activated returns the sockets that a service manager has opened, in the order in which
// dormouse.socket has them: HTTP, then WebSocket.
func activated() ([]net.Listener, error) {
	all, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take the sockets of the service manager: %w", err)
	}
	if len(all) > 2 {
		return nil, fmt.Errorf("the service manager has passed %d sockets; want the one for HTTP and then, if there is one, that for WebSocket clients", len(all))
	}
	for i, l := range all {
		if _, ok := l.(*net.TCPListener); !ok {
			return nil, fmt.Errorf("socket %d of the service manager is no TCP socket that listens", i+1)
		}
	}
	return all, nil
}

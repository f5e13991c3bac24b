package serversfile

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// network reads x-dormouse.box.network: "on", "off", or a list of hosts.
func (r *serverReader) network(m member, what string) {
	b := &r.server.Box
	switch on := m.value.text; {
	case m.value.shape == text && (on == "on" || on == "off"):
		b.Offline, b.Hosts = on == "off", nil
	case m.value.shape == array && len(m.value.items) > 0:
		b.Offline, b.Hosts = false, nil
		for _, item := range m.value.items {
			switch host := item.text; {
			case item.shape != text || !isHost(host):
				r.fail(item.at, `%s must have hosts such as "api.github.com", "*.slack.com:443" or "192.168.1.10:5432"; without a port they are open at 443 and 80`, what)
			case isLoopback(host):
				r.fail(item.at, "%s: %s is the server itself there, which reaches no program of this machine by a list", what, host)
			default:
				b.Hosts = append(b.Hosts, host)
			}
		}
	default:
		r.fail(m.value.at, `%s must be "on", "off" or a list of hosts, such as ["api.github.com"]`, what)
	}
}

var hostForm = regexp.MustCompile(`^(?:\*\.)?([\pL\pM\pN_-]+(?:\.[\pL\pM\pN_-]+)*)\.?(?::([0-9]+))?$`)

// isHost reports whether a text is a name, a name after "*.", or an IPv4 address, perhaps with a
// port. dormouse-keeper finds other mistakes in a name when it starts.
func isHost(text string) bool {
	parts := hostForm.FindStringSubmatch(text)
	if parts == nil {
		return false
	}
	if port, err := strconv.ParseUint(parts[2], 10, 16); parts[2] != "" && (err != nil || port == 0) {
		return false
	}
	if _, err := netip.ParseAddr(parts[1]); err == nil {
		return !strings.HasPrefix(text, "*")
	}
	last := parts[1][strings.LastIndexByte(parts[1], '.')+1:]
	// A host with a numeric last part is an IP address in an odd form, surely by mistake.
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(strings.ToLower(last), "0x")
}

func isLoopback(host string) bool {
	name, _, _ := strings.Cut(strings.ToLower(host), ":")
	a, _ := netip.ParseAddr(name)
	return a.IsLoopback() || a.IsUnspecified() || strings.TrimSuffix(name, ".") == "localhost"
}

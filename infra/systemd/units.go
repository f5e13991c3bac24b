// Package systemd has the units of Dormouse for systemd: those of a system, which docs/vps.md
// copies and dormouse service install writes as root.
package systemd

import _ "embed"

// Service is dormouse.service. Its program is /usr/local/bin/dormouse, and its servers file
// /etc/dormouse/servers.json.
//
//go:embed dormouse.service
var Service string

// Socket is dormouse.socket, with the addresses of the service.
//
//go:embed dormouse.socket
var Socket string

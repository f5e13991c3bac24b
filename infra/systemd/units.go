// Package systemd has the units with which systemd runs Dormouse for a whole machine. docs/vps.md
// copies them, and the command dormouse service install writes them if root calls it.
package systemd

import _ "embed"

// Service is dormouse.service. Its program is /usr/local/bin/dormouse, and its servers file
// /etc/dormouse/servers.json.
//
//go:embed dormouse.service
var Service string

// Socket is dormouse.socket, with the addresses at which the service listens.
//
//go:embed dormouse.socket
var Socket string

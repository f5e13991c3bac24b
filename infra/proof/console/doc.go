// Package console has the test of the console in a real Chromium: console.mjs drives it,
// against a Dormouse with the servers of server.mjs.
package console

// Package proc runs one operating system process with three pipes. It starts the process in its
// own process group, and ends the whole group with it. It cuts the output into lines, and keeps
// the end of stderr, with secrets removed.
//
// The package knows no protocol: its caller interprets the lines.
package proc

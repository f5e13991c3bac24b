// Package proc runs one operating system process with three pipes. It starts the process
// in a process group of its own, and ends it with everything in the group. It cuts the
// output into lines, and keeps the end of stderr, with secrets hidden.
//
// It knows no protocol: the caller interprets the lines.
package proc

// Package proc runs one operating system process with three pipes: it starts it in a
// process group of its own, ends it with everything it has started, cuts its output into
// lines, and keeps what it says on stderr without secrets.
//
// It knows no protocol: what a line says is its caller's business.
package proc

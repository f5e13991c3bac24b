//go:build !linux

package main

import (
	"errors"
	"os/exec"
)

// reap returns an error: it needs a child subreaper and /proc, which only Linux has.
func reap([]string) error {
	return errors.New("the benchmark reads the CPU and memory of process trees from /proc: run it on Linux")
}

func setGroup(*exec.Cmd) {}

//go:build !linux

package main

import (
	"errors"
	"os/exec"
)

// reap needs a child subreaper, which only Linux has; so does reading /proc.
func reap([]string) error {
	return errors.New("the benchmark reads the CPU and memory of process trees from /proc: run it on Linux")
}

func setGroup(*exec.Cmd) {}

//go:build !linux

package main

import (
	"errors"
	"time"
)

type cpuGroup struct{}

func joinGroup() (*cpuGroup, error) { return nil, errors.New("only Linux has cgroups") }

func (*cpuGroup) leave() error { return nil }

func (*cpuGroup) used() (time.Duration, error) { return 0, errors.New("no cgroup") }

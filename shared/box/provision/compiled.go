package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Node (22.8 and later) keeps the code that V8 has compiled in the folder that
// NODE_COMPILE_CACHE names. An install gets such a folder when it is made. Its program
// is started once, in a sandbox without network, arguments and the server's variables.
// Every process of the install then reads the same files, and none writes them. The lock
// does not list them: they follow from its packages and from the Node binary, which is
// part of the install's key.

const (
	compiledFolder   = "compiled"
	compileCache     = "NODE_COMPILE_CACHE"
	compileTime      = 10 * time.Second
	maxCompiledBytes = 64 << 20
	// exitSoon ends a program that goes on after its stdin has ended. Node writes the
	// cache when it exits.
	exitSoon = "--import=data:text/javascript,setTimeout(process.exit,3000).unref()"
)

// precompile fills the compile cache of an install with a program. Without a cache the
// install only starts more slowly, so a failure is only logged.
func (s nodeInstaller) precompile(ctx context.Context, b build, node, program string) {
	if !s.cfg.Compile {
		return
	}
	if err := s.fillCompiled(ctx, b, node, program); err != nil {
		s.log.Info("an install has no compile cache", "folder", b.dir, "error", err)
	}
}

func (s nodeInstaller) fillCompiled(ctx context.Context, b build, node, program string) error {
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	has, err := s.version(ctx, node, "-p", "typeof require('node:module').enableCompileCache")
	if err != nil || has != "function" {
		return errors.Join(err, errors.New("this Node has none before 22.8"))
	}
	work := b.dir + "-compiled"
	defer func() { _ = os.RemoveAll(work) }() // the next install tries again
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	made := filepath.Join(work, "cache")
	started := s.confined(ctx, Workshop{Folder: work, Read: []string{b.dir}, Programs: realPaths(node), Offline: true}, command{
		argv: []string{program}, dir: work, log: b.log, env: s.environ(),
	}, compileCache+"="+made, "NODE_OPTIONS="+exitSoon)
	// The program may fail for want of an argument or the network, but Node has compiled
	// it.
	entries, err := os.ReadDir(made)
	if err != nil || len(entries) != 1 {
		return errors.Join(errors.New("the program wrote none when it was started once"), started)
	}
	if n, err := size(made); err != nil || n > maxCompiledBytes {
		return errors.Join(err, fmt.Errorf("it has %d bytes, more than %d", n, maxCompiledBytes))
	}
	return takeCompiled(ctx, made, entries[0].Name(), filepath.Join(b.dir, compiledFolder))
}

// takeCompiled copies the compile cache and makes it read-only. Node ends the name of
// the folder with the user's id, which may be another in the sandbox.
func takeCompiled(ctx context.Context, made, name, dir string) error {
	own := name[:strings.LastIndexByte(name, '-')+1] + strconv.Itoa(os.Getuid())
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = copyOut(ctx, made, dir)
	}
	if err == nil && own != name {
		err = os.Rename(filepath.Join(dir, name), filepath.Join(dir, own))
	}
	if err == nil {
		err = os.Chmod(filepath.Join(dir, own), 0o555)
	}
	if err != nil {
		_ = os.RemoveAll(dir) // the first error says more
	}
	return err
}

// useCompiled lets the process read the compile cache of its install, unless the server
// configures one of its own.
func (s nodeInstaller) useCompiled(dir string) {
	dir = filepath.Join(dir, compiledFolder)
	if _, err := os.Stat(dir); err == nil && s.server.Env[compileCache] == "" {
		s.launch.Env[compileCache] = dir
	}
}

// removeInstall removes the folder of an install, also where it is read-only.
func removeInstall(dir string) error {
	readOnly, err := filepath.Glob(filepath.Join(dir, compiledFolder, "*"))
	for _, folder := range readOnly {
		err = errors.Join(err, os.Chmod(folder, 0o755))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

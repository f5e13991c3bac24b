package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Node (22.8 and later) keeps the code that V8 has compiled in the folder that
// NODE_COMPILE_CACHE names. An install gets such a folder when it is made: its program is
// started once, in a sandbox without network, arguments and the server's variables. Every
// process of the install then reads the same files, and none writes them. The lock does
// not list these files. They follow from its packages and from the Node binary, which is
// part of the install's key. The modules of a virtual environment are compiled as well.

const (
	compiledFolder = "compiled"
	compileCache   = "NODE_COMPILE_CACHE"
	// compilePortable has Node (24.12 and later) name files by their path from the cache,
	// so that a cache can move with its install. An older Node ignores it.
	compilePortable  = "NODE_COMPILE_CACHE_PORTABLE"
	compileTime      = 10 * time.Second
	maxCompiledBytes = 64 << 20
	// exitSoon is a Node option that ends a program even if it goes on after the end of
	// its stdin. Node writes the cache only when it exits.
	exitSoon = "--import=data:text/javascript,setTimeout(process.exit,3000).unref()"
)

// precompile fills the compile cache of an install by starting a program. Without a cache
// the install only starts more slowly, so precompile only logs a failure.
func (s *provisioning) precompile(ctx context.Context, b build, node, program string) {
	if !s.cfg.Compile {
		return
	}
	if err := s.fillCompiled(ctx, b, node, program); err != nil {
		s.log.Info("an install has no compile cache", "folder", b.dir, "error", err)
	}
}

func (s *provisioning) fillCompiled(ctx context.Context, b build, node, program string) error {
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	has, err := s.version(ctx, node, "-p", "typeof require('node:module').enableCompileCache")
	if err != nil || has != "function" {
		return errors.Join(err, errors.New("this Node has none before 22.8"))
	}
	// The cache names files by their path from its folder. So it is filled in a folder of
	// the install that is as deep as the one where processes read it.
	work := filepath.Join(b.dir, compiledFolder+"-now")
	defer func() { _ = os.RemoveAll(work) }() // the install is removed if this fails
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	_, started := s.confined(ctx, Workshop{Folder: work, Read: []string{b.dir}, Programs: realPaths(node), Offline: true}, command{
		argv: []string{program}, dir: work, log: b.log, env: s.environ(),
	}, compileCache+"="+work, compilePortable+"=1", "NODE_OPTIONS="+exitSoon)
	// The program may fail because it gets no argument or has no network. Node has
	// compiled it all the same.
	made, err := filepath.Glob(filepath.Join(work, "v*-*"))
	if err != nil || len(made) != 1 || !isFolder(made[0]) {
		return errors.Join(errors.New("the program wrote none when it was started once"), started)
	}
	if n, err := size(made[0]); err != nil || n > maxCompiledBytes {
		return errors.Join(err, fmt.Errorf("it has %d bytes, more than %d", n, maxCompiledBytes))
	}
	return takeCompiled(ctx, made[0], filepath.Join(b.dir, compiledFolder))
}

// isFolder reports whether a path is a folder, and not a link to one.
func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// takeCompiled copies the compile cache and makes it read-only. Node ends the name of
// the folder with the user's id, which may be another in the sandbox.
func takeCompiled(ctx context.Context, made, dir string) error {
	own := filepath.Join(dir, ownName(filepath.Base(made)))
	err := os.MkdirAll(own, 0o755)
	if err == nil {
		err = copyOut(ctx, made, own)
	}
	if err == nil {
		err = os.Chmod(own, 0o555)
	}
	if err != nil {
		_ = os.RemoveAll(dir) // the first error says more
	}
	return err
}

// compileModules compiles the modules of a virtual environment. It executes no code of a
// package. Python does not check the times of these files, because images and kept
// installs do not preserve times. It does not write the files again, because a process
// may not write in its install. Files that an installer has compiled depend on times, so
// compileModules makes them anew.
func (s *provisioning) compileModules(ctx context.Context, b build, interpreter string) {
	if !s.cfg.Compile {
		return
	}
	argv := []string{interpreter, "-I", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", filepath.Join(b.dir, "venv", "lib")}
	if _, err := (command{argv: argv, dir: b.dir, env: s.environ(), log: b.log}).run(ctx); err != nil {
		// A package may have files for other versions of Python, which this one cannot
		// compile.
		s.log.Info("some modules of an install are not compiled", "folder", b.dir, "error", err)
	}
}

// ownName returns the name that Node gives to a compile cache of this user, from the name
// for another user.
func ownName(name string) string {
	return name[:strings.LastIndexByte(name, '-')+1] + strconv.Itoa(os.Getuid())
}

// adoptCompiled renames the compile cache of an install that another user has made, so
// that Node finds it for this user.
func adoptCompiled(install string) error {
	all, err := filepath.Glob(filepath.Join(install, compiledFolder, "*"))
	for _, folder := range all {
		if own := filepath.Join(filepath.Dir(folder), ownName(filepath.Base(folder))); own != folder {
			err = errors.Join(err, os.Rename(folder, own))
		}
	}
	return err
}

// useCompiled lets the process read the compile cache of its install, unless the server
// configures a cache of its own.
func (s *provisioning) useCompiled(dir string) {
	dir = filepath.Join(dir, compiledFolder)
	if _, err := os.Stat(dir); err == nil && s.server.Env[compileCache] == "" {
		s.launch.Env[compileCache], s.launch.Env[compilePortable] = dir, "1"
	}
}

// removeInstall removes the folder of an install, even if parts of it are read-only.
func removeInstall(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	// If a folder cannot be changed here, the second attempt fails too.
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

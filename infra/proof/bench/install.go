package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// installLimit bounds one installation.
const installLimit = 5 * time.Minute

// prepare builds the echo server and installs the programs that each [peer] needs. The result
// missing has those that prepare cannot install, with the reasons.
func (p place) prepare(ctx context.Context, needs []string) (missing map[string]string, err error) {
	if err := os.MkdirAll(p.tools, 0o755); err != nil {
		return nil, err
	}
	if err := p.command(ctx, filepath.Join(p.root, "infra/proof"), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", p.echo(), "./bench/echo"); err != nil {
		return nil, err
	}
	missing = map[string]string{}
	steps := []struct {
		need string
		make func(context.Context) error
	}{
		{needNode, p.installNode},
		{needMCPAgent, p.bundleMCPAgent},
		{needMCPProxy, p.installMCPProxy},
		{needTBXark, p.buildTBXark},
	}
	for _, step := range steps {
		if !slices.Contains(needs, step.need) {
			continue
		}
		if err := step.make(ctx); err != nil {
			missing[step.need] = err.Error()
		}
	}
	return missing, nil
}

func (p place) peerFile(name ...string) string {
	return filepath.Join(append([]string{p.root, "infra/proof/bench/peers"}, name...)...)
}

func (p place) installNode(ctx context.Context) error {
	return p.once(needNode, []string{p.peerFile("node", "package.json"), p.peerFile("node", "package-lock.json")}, func(dir string) error {
		if err := copyFiles(dir, p.peerFile("node", "package.json"), p.peerFile("node", "package-lock.json")); err != nil {
			return err
		}
		// npm ci would refuse the lock file if a registry does not have workerd for every
		// platform.
		return p.command(ctx, dir, "npm", "install", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--loglevel=error")
	})
}

func (p place) bundleMCPAgent(ctx context.Context) error {
	files := []string{p.peerFile("mcpagent", "worker.mjs"), p.peerFile("mcpagent", "email.mjs"), p.peerFile("mcpagent", "config.capnp")}
	return p.once(needMCPAgent, append(files, p.peerFile("node", "package-lock.json")), func(dir string) error {
		if err := copyFiles(dir, files...); err != nil {
			return err
		}
		if err := os.Symlink(p.node(), filepath.Join(dir, "node_modules")); err != nil {
			return err
		}
		return p.command(ctx, dir, p.node(".bin", "esbuild"), "worker.mjs", "--bundle", "--format=esm", "--outfile=bundle.mjs",
			"--platform=neutral", "--main-fields=module,main", "--conditions=workerd,worker,browser,import",
			"--alias:path=node:path", "--external:cloudflare:*", "--external:node:*", "--log-level=error")
	})
}

func (p place) installMCPProxy(ctx context.Context) error {
	list := p.peerFile(needMCPProxy + ".txt")
	return p.once(needMCPProxy, []string{list}, func(dir string) error {
		if err := p.command(ctx, p.root, "python3", "-m", "venv", dir); err != nil {
			return err
		}
		return p.command(ctx, p.root, filepath.Join(dir, "bin", "python"),
			"-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-r", list)
	})
}

func (p place) buildTBXark(ctx context.Context) error {
	file := p.peerFile(needTBXark + ".txt")
	return p.once(needTBXark, []string{file}, func(dir string) error {
		module, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return p.command(ctx, p.root, "env", "GOBIN="+dir, "go", "install", strings.TrimSpace(string(module)))
	})
}

// once empties a folder of .tools/bench and calls the function fill for it. It does nothing if it has
// done so before and the sources are unchanged.
func (p place) once(name string, sources []string, fill func(dir string) error) error {
	sum := sha256.New()
	for _, file := range sources {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum.Write(text)
	}
	key := hex.EncodeToString(sum.Sum(nil))
	dir := filepath.Join(p.tools, name)
	stamp := filepath.Join(dir, ".installed")
	if old, err := os.ReadFile(stamp); err == nil && string(old) == key {
		return nil
	}
	fmt.Fprintf(os.Stderr, "installing %s into .tools/bench, once\n", name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := fill(dir); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(key), 0o644)
}

// command runs a command to its end. The error has the command's output.
func (p place) command(ctx context.Context, dir, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(out[max(0, len(out)-600):]))
	}
	return nil
}

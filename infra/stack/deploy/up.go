package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// up deploys the stack.
func (p *program) up(ctx context.Context) error {
	if err := p.config.fits(); err != nil {
		return err
	}
	text, err := os.ReadFile("template.yaml")
	if err != nil {
		return err
	}
	template, err := parameters(string(text))
	if err != nil {
		return err
	}
	if p.config.confirm && !p.yes && p.in == nil {
		return fmt.Errorf("samconfig.toml has [%s.deploy.parameters] confirm each change, and there is no terminal: run it at one, or with YES=1", p.config.section)
	}
	s, err := p.current(ctx)
	if err != nil {
		return err
	}
	if s == nil && p.config.region == "" && len(p.given) == 0 { // who names values has read about them
		if s, err = p.guide(ctx, template); err != nil { // the answers may name another one
			return err
		}
	}
	params, err := p.params(ctx, s)
	if err == nil {
		err = known(template, params)
	}
	if err != nil {
		return err
	}
	if err := p.servers(ctx, params, s); err != nil {
		return err
	}
	if params["AccessLogs"] == "on" {
		if err := p.logsRole(ctx); err != nil {
			return err
		}
	}
	arch := params["Architecture"]
	tag, err := p.tag(ctx, arch)
	if err != nil {
		return err
	}
	if params["RunnerImage"] == "" {
		params["ImageTag"] = tag
	} else {
		delete(params, "ImageTag")
	}
	p.serviceRole(ctx)
	build := command{Name: "make", Args: []string{"sam-build", "ARCH=" + arch, "CONFIG=" + p.config.section}, Show: true}
	if _, err := p.do(ctx, build); err != nil {
		return err
	}
	// The image repository is part of the stack, so the image of a new stack is pushed
	// after sam deploy. No caller needs the image earlier, because a new stack has no
	// keys.
	if s != nil {
		if err := p.image(ctx, s, params["ImageTag"], arch); err != nil {
			return err
		}
	}
	if s != nil && p.watch >= 0 {
		err = p.watched(ctx, s, params, p.watch)
	} else {
		err = p.plain(ctx, params)
	}
	if err != nil {
		return err
	}
	fresh := s == nil
	if s, err = p.current(ctx); err != nil {
		return err
	}
	if s == nil {
		return fmt.Errorf("the stack %s was deployed, and there is none now", p.config.stack)
	}
	if err := p.protect(ctx, s); err != nil {
		return err
	}
	if fresh {
		if err := p.image(ctx, s, params["ImageTag"], arch); err != nil {
			return err
		}
	}
	p.next(s)
	return nil
}

// current returns the stack, nil if nothing is deployed yet.
func (p *program) current(ctx context.Context) (*stack, error) {
	s, err := p.describe(ctx)
	if s != nil && s.reviewed() {
		return nil, err
	}
	return s, err
}

// protect keeps the stack from being deleted, or lets it go, as its parameter Protect says.
func (p *program) protect(ctx context.Context, s *stack) error {
	wanted := s.Params["Protect"] == "on"
	if wanted == s.Kept {
		return nil
	}
	flag := "--no-enable-termination-protection"
	if wanted {
		flag = "--enable-termination-protection"
	}
	_, err := p.aws(ctx, "cloudformation", "update-termination-protection", "--stack-name", p.config.stack, flag)
	return err
}

// plain runs sam deploy, which shows the change and, if samconfig.toml says so, has it
// confirmed.
func (p *program) plain(ctx context.Context, params map[string]string) error {
	args := []string{"deploy", "--config-env", p.config.section}
	if p.yes {
		args = append(args, "--no-confirm-changeset")
	}
	args = append(args, "--parameter-overrides")
	for _, name := range slices.Sorted(maps.Keys(params)) {
		args = append(args, name+"="+params[name])
	}
	_, err := p.do(ctx, command{Name: p.sam, Args: args, Show: true})
	if err == nil || !p.config.confirm {
		return err
	}
	if s, failed := p.current(ctx); failed == nil && s == nil {
		return fmt.Errorf("nothing is deployed, and the change set stays until the next make deploy: %w", err)
	}
	return fmt.Errorf("if you did not confirm the change, the stack is as it was: %w", err)
}

// params returns the parameters that this deployment sets: those that a new stack
// needs for its account, then samconfig.toml's, then the caller's. All other
// parameters keep their values.
func (p *program) params(ctx context.Context, s *stack) (map[string]string, error) {
	all, effective := map[string]string{}, map[string]string{}
	account, err := p.concurrency(ctx)
	if err != nil {
		return nil, err
	}
	arch := "arm64"
	if s == nil {
		all = account
	} else {
		if !s.whole() {
			return nil, fmt.Errorf("the stack %s is %s and cannot be updated: look at its events, then make delete", p.config.stack, s.Status)
		}
		maps.Copy(effective, s.Params)
		if own := s.Params["Architecture"]; own != "" {
			arch = own
		}
	}
	named := maps.Clone(p.config.params)
	maps.Copy(named, p.given)
	if s == nil && named["VpcId"] == "" && named["ZoneIds"] == "" {
		zones, err := p.zones(ctx)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, zones)
	}
	all["Architecture"] = arch
	maps.Copy(all, named)
	if p.arch != "" {
		all["Architecture"] = p.arch
	}
	maps.Copy(effective, all)
	return all, coherent(effective)
}

// tag returns the tag of this runner's image, from the commit, the program, and the
// servers file, whose servers are in the image.
func (p *program) tag(ctx context.Context, arch string) (string, error) {
	if _, err := p.do(ctx, command{Name: "make", Args: []string{"runner-aws", "ARCH=" + arch}, Show: true}); err != nil {
		return "", err
	}
	goarch := "arm64"
	if arch == "x86_64" {
		goarch = "amd64"
	}
	program, err := os.ReadFile("bin/linux-" + goarch + "/runner")
	if err != nil {
		return "", err
	}
	servers, err := os.ReadFile("servers.json")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(program, servers...))
	commit, err := p.do(ctx, command{Name: "git", Args: []string{"rev-parse", "--short=12", "HEAD"}})
	if err != nil {
		commit = "uncommitted"
	}
	return strings.TrimSpace(commit) + "-" + hex.EncodeToString(sum[:4]), nil
}

// image pushes the image of the boxes, unless its tag exists: tags do not move. Without a
// tag there is none to push.
func (p *program) image(ctx context.Context, s *stack, tag, arch string) error {
	uri := s.output("RepositoryUri")
	if tag == "" || uri == "" {
		return nil
	}
	_, repository, _ := strings.Cut(uri, "/")
	_, err := p.aws(ctx, "ecr", "describe-images", "--repository-name", repository, "--image-ids", "imageTag="+tag)
	if err == nil {
		return nil
	}
	if !strings.Contains(err.Error(), "ImageNotFound") {
		return err
	}
	password, err := p.aws(ctx, "ecr", "get-login-password")
	if err != nil {
		return err
	}
	_, err = p.do(ctx, command{Name: "make", Args: []string{"image", "ARCH=" + arch, "IMAGE=" + uri + ":" + tag}, Stdin: password, Show: true})
	return err
}

// next prints the user's next steps, in order.
func (p *program) next(s *stack) {
	for _, name := range []string{"Endpoint", "WebSocketUrl", "FirstKey", "ClaudeCode", "McpJson", "PushServers", "ConsoleUrl", "OpenConsole", "DashboardUrl"} {
		for _, o := range s.Outputs {
			if o.OutputKey == name {
				p.say("\n%s:\n  %s", o.Description, o.OutputValue)
			}
		}
	}
}

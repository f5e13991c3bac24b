package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// up deploys the stack: it calls doctor, builds, runs sam deploy, and pushes the image of the
// boxes.
func (p *program) up(ctx context.Context) error {
	if p.config.confirm && !p.yes && p.in == nil {
		return fmt.Errorf("samconfig.toml has [%s.deploy.parameters] confirm each change, and there is no terminal: run it at one, or with YES=1", p.config.section)
	}
	s, err := p.current(ctx)
	if err != nil {
		return err
	}
	params, err := p.doctor(ctx, s)
	if err != nil {
		return err
	}
	arch := params["Architecture"]
	tag := ""
	if p.ownImage(params, s) {
		if tag, err = p.tag(ctx, arch); err != nil {
			return err
		}
	}
	build := command{Name: "make", Args: []string{"sam-build", "ARCH=" + arch, "CONFIG=" + p.config.section}, Show: true}
	if _, err := p.do(ctx, build); err != nil {
		return err
	}
	// The repository is part of the stack, so the image of a new stack is pushed after the stack
	// was created. Nobody needs the image earlier, because a new stack has no API keys.
	fresh := s == nil
	if fresh {
		if err := p.plain(ctx, params); err != nil {
			return err
		}
		if s, err = p.current(ctx); err != nil {
			return err
		}
		if s == nil { // sam reports no error if the user answers its question with n
			return fmt.Errorf("nothing is deployed: the change was not confirmed. The next make deploy CONFIG=%s makes another", p.config.section)
		}
	}
	image, err := p.image(ctx, s, tag, arch)
	if err != nil {
		return err
	}
	if image != "" {
		params["RunnerImage"] = image
	}
	if !fresh {
		err = p.plain(ctx, params)
	} else if image != "" {
		err = p.set(ctx, s, "RunnerImage", image)
	}
	if err != nil {
		return err
	}
	before := s.Updated
	if s, err = p.current(ctx); err != nil || s == nil {
		return errors.Join(err, fmt.Errorf("the stack %s is not described", p.config.stack))
	}
	if !fresh && p.config.confirm && s.Updated == before {
		p.say("the stack %s is as it was: the change was not confirmed, or there is none", p.config.stack)
		return nil
	}
	if err := p.protect(ctx, s); err != nil {
		return err
	}
	p.next(s)
	return nil
}

// current returns the stack, nil if nothing is deployed yet.
func (p *program) current(ctx context.Context) (*stack, error) {
	s, err := p.describe(ctx)
	if s != nil && s.Status == "REVIEW_IN_PROGRESS" { // it has only a change set that nobody has executed
		return nil, err
	}
	return s, err
}

// protect switches the protection of the stack and of its restored table on or off, as the stack's
// parameter Protect says. The template protects the stack's own table.
func (p *program) protect(ctx context.Context, s *stack) error {
	wanted, flag := s.Params["Protect"] == "on", "--no-"
	if wanted {
		flag = "--"
	}
	if wanted != s.Kept {
		if _, err := p.aws(ctx, "cloudformation", "update-termination-protection", "--stack-name", p.config.stack, flag+"enable-termination-protection"); err != nil {
			return err
		}
	}
	table := s.Params["RestoredTable"]
	if table == "" {
		return nil
	}
	is, err := p.aws(ctx, "dynamodb", "describe-table", "--table-name", table, "--query", "Table.DeletionProtectionEnabled", "--output", "text")
	if err == nil && wanted != (is == "True") {
		_, err = p.aws(ctx, "dynamodb", "update-table", "--table-name", table, flag+"deletion-protection-enabled")
	}
	return err
}

// plain runs sam deploy with these parameters of the template. If samconfig.toml says so and p.yes
// is not set, sam asks the user to confirm the change.
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
	return err
}

// answered asks the user a question, and returns an error unless the answer is the text want.
func (p *program) answered(want, question string, args ...any) error {
	if p.in == nil {
		return errors.New("this asks for a confirmation, and there is no terminal: run it at one, or with YES=1")
	}
	_, _ = fmt.Fprintf(p.out, question+": ", args...)
	if line, err := bufio.NewReader(p.in).ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}

// ownImage reports whether make deploy pushes the image of the boxes. It does not if the user has
// named an image in RunnerImage, or if the stack's image is not in the stack's repository.
func (*program) ownImage(params map[string]string, s *stack) bool {
	if image, named := params["RunnerImage"]; named || s == nil {
		return image == ""
	}
	image := s.Params["RunnerImage"]
	return image == "" || strings.HasPrefix(image, s.output("RepositoryUri")+":")
}

// tag builds the runner, the program in a box, and returns the tag of its image. The tag depends on
// the commit and on what make image puts into the image: the program, and the servers of the servers
// file or the locks. The image has nothing of servers.lock.json, which is deployed with the functions.
func (p *program) tag(ctx context.Context, arch string) (string, error) {
	if _, err := p.do(ctx, command{Name: "make", Args: []string{"runner-aws", "ARCH=" + arch}, Show: true}); err != nil {
		return "", err
	}
	// Make exports these variables to this program and to the make image below, if the user sets them.
	image := map[string]string{"SERVERS": "servers.json"}
	for _, name := range []string{"BAKE", "LOCKS", "SERVERS"} {
		if value, set := os.LookupEnv(name); set {
			image[name] = value
		}
	}
	files := []string{"bin/linux-" + strings.Replace(arch, "x86_64", "amd64", 1) + "/runner", image["SERVERS"]}
	if locks := image["LOCKS"]; locks != "" {
		found, _ := filepath.Glob(locks + "/*") // the only error is one of the pattern
		files = append(files, found...)
	}
	sum := sha256.New()
	_, _ = fmt.Fprintln(sum, image)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(sum, "%s %x\n", file, sha256.Sum256(text))
	}
	commit, err := p.do(ctx, command{Name: "git", Args: []string{"rev-parse", "--short=12", "HEAD"}})
	if err != nil {
		commit = "uncommitted"
	}
	return strings.TrimSpace(commit) + "-" + hex.EncodeToString(sum.Sum(nil)[:4]), nil
}

// image pushes the image of the boxes to the stack's repository, unless the tag is there already: a
// tag always stands for the same image. It returns the name of the image, or "" if tag is "" or
// the stack has no repository.
func (p *program) image(ctx context.Context, s *stack, tag, arch string) (string, error) {
	uri := s.output("RepositoryUri")
	if tag == "" || uri == "" {
		return "", nil
	}
	_, repository, _ := strings.Cut(uri, "/")
	image := uri + ":" + tag
	_, err := p.aws(ctx, "ecr", "describe-images", "--repository-name", repository, "--image-ids", "imageTag="+tag)
	if err == nil || !strings.Contains(err.Error(), "ImageNotFound") {
		return image, err
	}
	password, err := p.aws(ctx, "ecr", "get-login-password")
	if err != nil {
		return "", err
	}
	_, err = p.do(ctx, command{Name: "make", Args: []string{"image", "ARCH=" + arch, "IMAGE=" + image}, Stdin: password, Show: true})
	return image, err
}

// next prints the user's next steps, in order.
func (p *program) next(s *stack) {
	for _, name := range []string{"Endpoint", "WebSocketUrl", "FirstKey", "ClaudeCode", "McpJson", "PushServers", "ConsoleUrl", "OpenConsole", "DashboardUrl"} {
		if i := slices.IndexFunc(s.Outputs, func(o output) bool { return o.OutputKey == name }); i >= 0 {
			p.say("\n%s:\n  %s", s.Outputs[i].Description, s.Outputs[i].OutputValue)
		}
	}
}

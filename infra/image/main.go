// Command image makes the image of a box without Docker: it puts one layer with the
// runner, and files of other images (uv), on a base image that has the rest, and
// pushes the result. What infra/image/Dockerfile says, for a machine without a daemon.
//
//	image -to REPOSITORY:TAG [-base IMAGE] [-platform linux/arm64] [-user NAME <password]
//	      runner=/usr/local/bin/dormouse-runner IMAGE:/uv=/usr/local/bin/uv ...
//
// A file is SOURCE=DESTINATION; SOURCE is a file of this machine, or IMAGE:/PATH. The
// same files on the same base give the same digest. It prints the reference of the
// image with its digest, and nothing else, to stdout. Credentials are those of docker
// login, or -user with the password on stdin for the registry of -to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	made, err := run(ctx, os.Args[1:], os.Stdin)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, made)
}

func run(ctx context.Context, args []string, stdin io.Reader) (string, error) {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	to := flags.String("to", "", "where the image is pushed, REPOSITORY:TAG")
	base := flags.String("base", defaultBase, "image with Node, Python and git")
	platform := flags.String("platform", "linux/arm64", "OS/ARCHITECTURE of the boxes")
	user := flags.String("user", "", "user at the registry of -to, with the password on stdin; docker login's if empty")
	if err := flags.Parse(args); err != nil {
		return "", err
	}
	b := builder{base: *base, target: *to, keys: authn.DefaultKeychain}
	p, err := v1.ParsePlatform(*platform)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return "", fmt.Errorf("-platform is %q; want OS/ARCHITECTURE such as linux/arm64", *platform)
	}
	b.platform = *p
	if *to == "" || flags.NArg() == 0 {
		return "", errors.New("want -to and files; see the head of infra/image/main.go")
	}
	for _, text := range flags.Args() {
		f, err := parseFile(text)
		if err != nil {
			return "", err
		}
		b.files = append(b.files, f)
	}
	if *user != "" {
		password, err := io.ReadAll(io.LimitReader(stdin, 1<<16))
		if err != nil {
			return "", fmt.Errorf("read the password from stdin: %w", err)
		}
		b.push = &authn.Basic{Username: *user, Password: strings.TrimSpace(string(password))}
	}
	return b.build(ctx)
}

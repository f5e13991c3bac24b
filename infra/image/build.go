package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// entrypoint is where the runner is in the image.
const entrypoint = "/usr/local/bin/dormouse-runner"

// defaultBase has Node, Python and git.
const defaultBase = "docker.io/library/node:22-bookworm"

// environment is what the image sets; it is there in the Dockerfile, too.
func environment() []string { return []string{"LANG=C.UTF-8", "UV_PYTHON_DOWNLOADS=never"} }

// maxFile bounds a file of the layer, which is held in memory.
const maxFile = 512 << 20

// builder makes one image.
type builder struct {
	base, target string
	platform     v1.Platform
	files        []file
	keys         authn.Keychain
	push         authn.Authenticator // nil: from keys
}

// file is one of the layer, from this machine if image is "".
type file struct{ image, source, destination string }

func parseFile(text string) (file, error) {
	source, destination, ok := strings.Cut(text, "=")
	f := file{source: source, destination: destination}
	if at := strings.LastIndex(source, ":/"); at > 0 {
		f.image, f.source = source[:at], source[at+1:]
	}
	if !ok || f.source == "" || !path.IsAbs(destination) || path.Clean(destination) != destination || destination == "/" {
		return file{}, fmt.Errorf("%q is no file of the image; want SOURCE=/DESTINATION or IMAGE:/SOURCE=/DESTINATION", text)
	}
	return f, nil
}

// build pushes the image and returns its reference with the digest.
func (b builder) build(ctx context.Context) (string, error) {
	if !slices.ContainsFunc(b.files, func(f file) bool { return f.destination == entrypoint }) {
		return "", fmt.Errorf("no file has the destination %s, which is what the image runs", entrypoint)
	}
	target, err := name.ParseReference(b.target)
	if err != nil {
		return "", fmt.Errorf("-to: %w", err)
	}
	base, err := b.pull(ctx, b.base)
	if err != nil {
		return "", err
	}
	layer, err := b.layer(ctx)
	if err != nil {
		return "", err
	}
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return "", fmt.Errorf("append the layer: %w", err)
	}
	if img, err = configure(img); err != nil {
		return "", err
	}
	if err := remote.Write(target, img, b.options(ctx, b.push)...); err != nil {
		return "", fmt.Errorf("push %s: %w", target, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	return target.Context().Digest(digest.String()).String(), nil
}

func (b builder) options(ctx context.Context, as authn.Authenticator) []remote.Option {
	who := remote.WithAuthFromKeychain(b.keys)
	if as != nil {
		who = remote.WithAuth(as)
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithPlatform(b.platform), who}
}

// pull gets the image for the platform; one that is for another is refused.
func (b builder) pull(ctx context.Context, text string) (v1.Image, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no image: %w", text, err)
	}
	img, err := remote.Image(ref, b.options(ctx, nil)...)
	if err != nil {
		return nil, fmt.Errorf("pull %s for %s: %w", ref, b.platform, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of %s: %w", ref, err)
	}
	if config.OS != b.platform.OS || config.Architecture != b.platform.Architecture {
		return nil, fmt.Errorf("%s is for %s/%s, not %s; choose another image or -platform", ref, config.OS, config.Architecture, b.platform)
	}
	return img, nil
}

func configure(img v1.Image) (v1.Image, error) {
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	config := *file.Config.DeepCopy()
	config.Entrypoint, config.Cmd, config.WorkingDir, config.User = []string{entrypoint}, nil, "/", "0"
	for _, set := range environment() {
		key, _, _ := strings.Cut(set, "=")
		config.Env = slices.DeleteFunc(config.Env, func(v string) bool { return strings.HasPrefix(v, key+"=") })
		config.Env = append(config.Env, set)
	}
	if img, err = mutate.Config(img, config); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	return img, nil
}

// layer holds the files, executable, owned by root and without a time, in the order of
// their names.
func (b builder) layer(ctx context.Context) (v1.Layer, error) {
	files := slices.Clone(b.files)
	slices.SortFunc(files, func(x, y file) int { return cmp.Compare(x.destination, y.destination) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		data, err := b.read(ctx, f)
		if err != nil {
			return nil, err
		}
		head := tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.destination, "/"), Size: int64(len(data)), Mode: 0o755, Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(&head); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", f.destination, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", f.destination, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end the layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	return layer, nil
}

func (b builder) read(ctx context.Context, f file) ([]byte, error) {
	if f.image == "" {
		data, err := os.ReadFile(f.source)
		if err != nil {
			return nil, fmt.Errorf("read a file of the image: %w", err)
		}
		return data, nil
	}
	img, err := b.pull(ctx, f.image)
	if err != nil {
		return nil, err
	}
	whole := mutate.Extract(img)
	defer func() { _ = whole.Close() }() // nothing more is read
	for r := tar.NewReader(whole); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s has no file %s", f.image, f.source)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.image, err)
		}
		if path.Join("/", head.Name) != path.Clean(f.source) {
			continue
		}
		if head.Typeflag != tar.TypeReg || head.Size > maxFile {
			return nil, fmt.Errorf("%s in %s is no file of at most %d MiB", f.source, f.image, maxFile>>20)
		}
		data := make([]byte, head.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, fmt.Errorf("read %s in %s: %w", f.source, f.image, err)
		}
		return data, nil
	}
}

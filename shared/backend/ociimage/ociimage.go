// Package ociimage asks a container registry which image a name refers to now, and which
// program a container of that image starts. It reads a manifest and a configuration, and no
// layer.
package ociimage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

const (
	callTimeout = 5 * time.Second // limit for one request
	maxBytes    = 4 << 20         // of a manifest, a configuration or a token
)

// Registries reads images of all registries. Arch is required.
type Registries struct {
	// Arch is the processor architecture of the image, "arm64" or "amd64".
	Arch string
	// Login returns the value of the header Authorization for a registry, "" for none. A nil
	// Login never logs in.
	Login  func(ctx context.Context, registry string) (string, error)
	Client *http.Client // nil for a new one
}

// Inspect returns the name of an image with its digest, and what a container of it starts.
// Inspect reads names as Docker does: "mcp/time" is an image of Docker Hub. Its errors wrap
// fleet.ErrInvalid if there is no such image for the processor, or Inspect may not read it, and
// fleet.ErrUnavailable if the registry does not answer.
func (r Registries) Inspect(ctx context.Context, image string) (name string, config frame.Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the image %s: %w", image, err)
		}
	}()
	n, err := parse(image)
	if err != nil {
		return "", config, err
	}
	c := &conversation{Registries: r, name: n}
	if c.Client == nil {
		c.Client = &http.Client{}
	}
	if r.Login != nil {
		if c.authorization, err = r.Login(ctx, n.registry); err != nil {
			return "", config, fmt.Errorf("%w: log in at %s: %w", fleet.ErrUnavailable, n.registry, err)
		}
	}
	top, digest, err := c.manifest(ctx, n.reference)
	if err != nil {
		return "", config, err
	}
	m := top
	if len(top.Manifests) > 0 {
		if m, err = c.ofArch(ctx, top); err != nil {
			return "", config, err
		}
	}
	text, err := c.get(ctx, "blobs/"+m.Config.Digest)
	if err == nil {
		err = matches(text, m.Config.Digest)
	}
	if err != nil {
		return "", config, err
	}
	var own struct {
		Architecture string
		OS           string
		Config       frame.Image
	}
	if err := json.Unmarshal(text, &own); err != nil {
		return "", config, fmt.Errorf("%w: its configuration cannot be read: %w", fleet.ErrInvalid, err)
	}
	if own.Architecture != r.Arch || own.OS != "linux" {
		return "", config, r.otherPlatform()
	}
	return n.shown + "@" + digest, own.Config, nil
}

func (r Registries) otherPlatform() error {
	return fmt.Errorf("%w: it has no image for linux/%s, which the parameter Architecture of the stack asks for", fleet.ErrInvalid, r.Arch)
}

// name is the parsed name of an image.
type name struct {
	shown      string // as the user has written it, without tag and digest
	registry   string // host, and port if there is one
	repository string
	reference  string // a tag or a digest
}

var (
	registryForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?$`)
	repositoryForm = regexp.MustCompile(`^[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`)
	tagForm        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestForm     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func parse(image string) (n name, err error) {
	rest, digest, pinned := strings.Cut(image, "@")
	n.shown, n.reference = rest, "latest"
	if at := strings.LastIndexByte(rest, ':'); at > strings.LastIndexByte(rest, '/') {
		n.shown, n.reference = rest[:at], rest[at+1:]
	}
	ok := tagForm.MatchString(n.reference)
	if pinned {
		n.reference, ok = digest, ok && digestForm.MatchString(digest)
	}
	first, below, several := strings.Cut(n.shown, "/")
	switch {
	case several && (strings.ContainsAny(first, ".:") || first == "localhost"):
		n.registry, n.repository = first, below
	case several:
		n.registry, n.repository = "docker.io", n.shown
	default:
		n.registry, n.repository = "docker.io", "library/"+n.shown
	}
	if n.registry == "docker.io" || n.registry == "index.docker.io" {
		n.registry = "registry-1.docker.io"
		if !strings.Contains(n.repository, "/") {
			n.repository = "library/" + n.repository
		}
	}
	if !ok || !registryForm.MatchString(n.registry) || !repositoryForm.MatchString(n.repository) {
		return n, fmt.Errorf("%w: it is no name of an image: want [HOST/]NAME[:TAG] or [HOST/]NAME@sha256:DIGEST", fleet.ErrInvalid)
	}
	return n, nil
}

// conversation asks one registry about one image.
type conversation struct {
	Registries
	name          name
	authorization string // the value of the header Authorization, "" for none
}

// descriptor names a blob or manifest.
type descriptor struct {
	Digest   string
	Platform struct{ OS, Architecture string }
}

// manifest describes an image, or lists the images for several processors.
type manifest struct {
	Config    descriptor
	Manifests []descriptor
}

func (c *conversation) manifest(ctx context.Context, reference string) (m manifest, digest string, err error) {
	text, err := c.get(ctx, "manifests/"+reference)
	if err != nil {
		return m, "", err
	}
	if digestForm.MatchString(reference) {
		if err := matches(text, reference); err != nil {
			return m, "", err
		}
	}
	if err := json.Unmarshal(text, &m); err != nil || len(m.Manifests) == 0 && !digestForm.MatchString(m.Config.Digest) {
		return m, "", fmt.Errorf("%w: %s has no manifest of an image under this name", fleet.ErrInvalid, c.name.registry)
	}
	return m, digestOf(text), nil
}

// ofArch returns the manifest of the image for Linux on the architecture c.Arch.
func (c *conversation) ofArch(ctx context.Context, index manifest) (manifest, error) {
	for _, d := range index.Manifests {
		if d.Platform.OS == "linux" && d.Platform.Architecture == c.Arch && digestForm.MatchString(d.Digest) {
			m, _, err := c.manifest(ctx, d.Digest)
			if err == nil && len(m.Manifests) > 0 {
				err = fmt.Errorf("%w: its index names another index", fleet.ErrInvalid)
			}
			return m, err
		}
	}
	return manifest{}, c.otherPlatform()
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// matches returns an error unless a text has the digest.
func matches(text []byte, digest string) error {
	if digestOf(text) != digest {
		return fmt.Errorf("%w: the registry gave other bytes than %s", fleet.ErrUnavailable, digest)
	}
	return nil
}

// get reads a part of the image, such as "manifests/latest". If the registry asks for a token, get
// first requests one. For a public image that needs no login.
func (c *conversation) get(ctx context.Context, part string) ([]byte, error) {
	address := scheme(c.name.registry) + c.name.registry + "/v2/" + c.name.repository + "/" + part
	status, header, text, err := c.ask(ctx, address, c.authorization)
	if err == nil && status == http.StatusUnauthorized && !strings.HasPrefix(c.authorization, "Bearer ") {
		var token string
		if token, err = c.token(ctx, header.Get("WWW-Authenticate")); err == nil && token != "" {
			c.authorization = "Bearer " + token
			status, _, text, err = c.ask(ctx, address, c.authorization)
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %s cannot be reached: %w", fleet.ErrUnavailable, c.name.registry, err)
	case status == http.StatusOK:
		return text, nil
	case status == http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s has no such image", fleet.ErrInvalid, c.name.registry)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return nil, fmt.Errorf("%w: %s wants a login for it, or has no such image: take a public image, or one in ECR of the stack's account and region", fleet.ErrInvalid, c.name.registry)
	}
	return nil, fmt.Errorf("%w: %s answers %d", fleet.ErrUnavailable, c.name.registry, status)
}

// token gets a token from the address that a registry names in its challenge, the header
// WWW-Authenticate. It returns "" if the challenge asks for no token, or that address gives none.
func (c *conversation) token(ctx context.Context, challenge string) (string, error) {
	kind, rest, _ := strings.Cut(challenge, " ")
	if !strings.EqualFold(kind, "Bearer") {
		return "", nil
	}
	values := map[string]string{}
	for _, m := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(rest, -1) {
		values[strings.ToLower(m[1])] = m[2]
	}
	realm, err := url.Parse(values["realm"])
	if err != nil || realm.Host == "" || realm.Scheme+"://" != scheme(realm.Host) {
		return "", errors.New("it names no place for tokens")
	}
	query := realm.Query()
	query.Set("service", values["service"])
	query.Set("scope", "repository:"+c.name.repository+":pull")
	realm.RawQuery = query.Encode()
	status, _, text, err := c.ask(ctx, realm.String(), c.authorization)
	if err != nil || status != http.StatusOK {
		return "", err // without a token, get reports why the registry refused its request
	}
	var answer struct {
		Token  string
		Access string `json:"access_token"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", err
	}
	return cmp.Or(answer.Token, answer.Access), nil
}

func (c *conversation) ask(ctx context.Context, address, authorization string) (status int, header http.Header, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, nil, nil, err
	}
	for _, kind := range []string{
		"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
		"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
	} {
		r.Header.Add("Accept", kind)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	res, err := c.Client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = res.Body.Close() }() // an error does not matter: the body was only read
	text, err = io.ReadAll(io.LimitReader(res.Body, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("an answer has more than %d bytes", maxBytes)
	}
	return res.StatusCode, res.Header, text, err
}

// scheme returns the scheme of a registry's URL. As with Docker, a registry on this machine
// needs no certificate.
func scheme(registry string) string {
	host := registry
	if h, _, err := net.SplitHostPort(registry); err == nil {
		host = h
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return "http://"
	}
	return "https://"
}
